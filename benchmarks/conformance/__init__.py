"""Small programs run under torchrun and under Muster: how the results differ, and how often Muster fails."""
