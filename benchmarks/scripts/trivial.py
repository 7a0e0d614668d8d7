print("this process ran")
