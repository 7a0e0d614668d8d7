"""`muster check`: finds what is wrong with the hosts before a job meets it.

A check is one file in `checks/`: the symptom a user would have met, how it judges the answers of all hosts together
(a pure function), and the command that fixes it. It names the probe that asks each host, a function of
`muster.agent.probes`.
"""
