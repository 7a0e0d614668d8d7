"""Injects faults into running jobs on lab hosts: does the job recover, after how long, and is its output complete?"""
