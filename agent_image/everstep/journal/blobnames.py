"""Which blobs a value in a record names: itself, if it is kept apart, and the parts of the files that came with it."""

from everstep.journal.records import Json


def blobs_of(value: Json) -> list[str]:
    """The digests, as they are written; whoever reads a record of unknown origin checks them."""
    if not (isinstance(value, dict) and "$blob" in value):
        return []
    parts = value.get("parts")
    names = [value["$blob"], *(parts if isinstance(parts, list) else ())]
    return [name for name in names if isinstance(name, str)]


def value_in(reference: Json, kept: Json) -> Json:
    """The value itself, from what the blob of a reference holds: of one with files, a part of it."""
    return kept["$artifact"] if isinstance(reference, dict) and "parts" in reference else kept
