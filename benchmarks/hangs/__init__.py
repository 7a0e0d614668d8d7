"""Injects every kind of hang on lab hosts: does Muster name the right rank and line, and how fast?"""
