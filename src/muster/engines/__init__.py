"""The engines, one package each, and the choice between them."""
