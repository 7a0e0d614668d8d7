"""Small programs run under torchrun and under Muster: what both do with them, and how often Muster fails."""
