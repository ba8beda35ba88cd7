"""GPU names as people type them: `L40S`, `a100-80`, `4090`, `rtx 3090`.

A name means a product if all of its words are words of the product, or its memory. Products that differ only in how
they are plugged in hold the same tasks, so the first of them counts. If the memory differs, the name has to say which.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from vramcast.errors import InvalidInput
from vramcast.hardware.products import PRODUCTS, UNCALIBRATED_MIB, base_product, memory_mib
from vramcast.names import Product

# Makers' prefixes and parts of names that people leave out.
_OMITTED = ("NVIDIA-", "Tesla-", "GeForce-", "-SXM2", "-SXM3", "-SXM4", "-PCIE", "-PCIe", "-HBM3")
_WORDS = re.compile(r"[a-z]+[0-9]*[a-z]*|[0-9]+[a-z]*")
_MEMORY = re.compile(r"([0-9]{1,3})(g|gb|gib)?")
# An A10 of "24 GB" reports 22.5 GiB.
_NOMINAL = 0.07
_NEAREST = 4


def known_products() -> tuple[Product, ...]:
    return tuple(map(Product, (*PRODUCTS, *UNCALIBRATED_MIB)))


def short_name(product: Product) -> str:
    name = str(product)
    for part in _OMITTED:
        name = name.replace(part, "")
    return name


def find_product(text: str, others: Iterable[Product] = ()) -> Product:
    """`others`: products that count by their full names although no table has them, such as a cluster's own.

    Raises InvalidInput with the nearest names.
    """
    product = base_product(text.strip())
    if product in others or memory_mib(product) is not None:
        return product
    found = _by_words(text) or _by_letters(text)
    sizes = {memory_mib(each): each for each in reversed(found)}
    if len(sizes) == 1:
        return found[0]
    if found:
        options = ", ".join(
            f"{sizes[size]} ({(size or 0) / 1024:.0f} GiB)" for size in sorted(sizes, key=lambda s: s or 0)
        )
        raise InvalidInput(f"GPU {text!r} may be one of {options}: give more of the name")
    raise InvalidInput(f"GPU {text!r}: no known product has this name; {_suggestion(text)}")


def _by_words(text: str) -> list[Product]:
    wanted = _WORDS.findall(text.lower())
    return [product for product in known_products() if wanted and all(_says(product, word) for word in wanted)]


def _says(product: Product, word: str) -> bool:
    words = _WORDS.findall(str(product).lower())
    if word in words or (word == "sxm" and any(each.startswith("sxm") for each in words)):
        return True
    memory = _MEMORY.fullmatch(word)
    if memory is None:
        return False
    # A number without a unit may also be the model: 4090, but never 3090 GB.
    nominal, actual = float(memory[1]), (memory_mib(product) or 0) / 1024
    return abs(actual - nominal) <= _NOMINAL * nominal


def _by_letters(text: str) -> list[Product]:
    """`rtx4090`: written as one word."""
    wanted = _letters(text)
    return [product for product in known_products() if len(wanted) > 2 and wanted in _letters(str(product))]


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _suggestion(text: str) -> str:
    names = {_letters(short_name(product)): product for product in reversed(known_products())}
    near = get_close_matches(_letters(text)[:40], names, n=_NEAREST, cutoff=0.5)
    if near:
        return f"did you mean {', '.join(short_name(names[name]) for name in near)}?"
    return f"the known ones are {', '.join(dict.fromkeys(map(short_name, known_products())))}"
