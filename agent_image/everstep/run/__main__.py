"""`python -m everstep.run`: the agent process, as operator and supervisor start it."""

import os

from everstep.run.process import main

if __name__ == "__main__":
    main(os.environ)
