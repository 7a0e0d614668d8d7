"""`muster check`: finds problems on the hosts before a job runs into them.

A check is one file in `checks/`: the symptom a user would see, a pure function that judges the answers of all hosts
together, and the command that fixes the problem. It refers to a probe, a function of `muster.agent.probes` that runs on
each host.
"""
