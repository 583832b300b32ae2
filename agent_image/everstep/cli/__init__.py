"""The command lines `everstep` and `kubectl-everstep`.

Belongs here: parsing, help, tables, live output, exit codes, calling kubectl. Must not be here: decisions about runs
(`everstep.local`, the operator), kopf, anything the agent process needs.
"""


def main() -> None:
    """Entry point of `everstep`. click and rich are imported here and not earlier: the SDK must start fast."""
    from everstep.cli.app import everstep

    everstep(prog_name="everstep")
