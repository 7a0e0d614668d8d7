"""`muster setup`: what a person does once, so that every later command works without questions."""
