WORD = "neighbor"
