"""Finite width: figures after chapter 4 of Roberts, Yaida & Hanin (2022), and their recurrent counterparts."""
