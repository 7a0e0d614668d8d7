"""Ranks that are made slow on purpose: are they named, for the right reason, and how soon?"""
