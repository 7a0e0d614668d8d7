"""A database whose last transaction nobody commits: Python rolls it back."""

import os
import sqlite3

database = sqlite3.connect(f"{os.environ['OUT']}/rank-{os.environ['RANK']}.sqlite")
database.execute("create table words (word text)")
database.execute("insert into words values ('kept')")
database.commit()
database.execute("insert into words values ('lost')")
