"""Every failure of the catalogue that can be seen before launch, made on lab hosts: does `muster check` find it?"""
