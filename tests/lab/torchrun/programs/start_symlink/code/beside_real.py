WORD = "beside"
