"""Every failure of the catalogue that ends a running job, made on lab hosts: does `muster run` explain it?"""
