"""Figures of Bordelon & Pehlevan (2022)."""
