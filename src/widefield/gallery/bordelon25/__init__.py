"""Figures of Bordelon & Pehlevan (2025)."""
