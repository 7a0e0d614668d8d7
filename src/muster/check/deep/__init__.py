"""The deep level: ranks on every host, as the job will have them, that measure links, devices and collectives."""
