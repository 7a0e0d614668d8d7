"""The deep check: starts ranks on every host, as the job would, to measure links, devices and collectives."""
