"""Ranks that are slowed down on purpose: does Muster name them, with the right reason, and how fast?"""
