"""`python -m everstep.run`: the agent process, as operator and supervisor start it."""

import gc
import os

gc.disable()  # nothing that is imported is garbage; looking for some takes a tenth of the start

from everstep.run.process import main  # noqa: E402  # see above

gc.freeze()  # nor will it be
gc.enable()

if __name__ == "__main__":
    main(os.environ)
