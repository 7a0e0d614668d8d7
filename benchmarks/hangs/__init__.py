"""Every way in which a rank can bring a job to a halt, made on lab hosts: is the right rank named, where, and when?"""
