"""Every refusal of bad input: what must hold, what it is, and the remedy.

The functions here look at names, shapes, types and plain numbers; none of them touches an array.
TypeError is for kinds, ValueError for values.
"""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, NoReturn

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = (*FLOATS, *INTEGERS, "bool")
OPTIONS = (
    "mask",
    "bias",
    "causal",
    "query_offset",
    "window",
    "key_lengths",
    "query_lengths",
    "scale",
    "softcap",
    "sinks",
    "engine",
    "threads",
)
POSITION_LIMIT = 2**60
"""Offsets beyond it, in tokens, could overflow 64-bit arithmetic on positions."""

Shape = tuple[int, ...]


def option(name: str) -> None:
    """Refuse a keyword that attention does not know."""
    if name not in OPTIONS:
        unknown("option", name, OPTIONS, TypeError)


def library_missing(what: str, name: str, extra: str, cause: Exception) -> NoReturn:
    """Refuse what needs a library that is not installed."""
    raise ModuleNotFoundError(
        f'{what} needs {name}, which is not installed: pip install "scaledot[{extra}]"', name=name
    ) from cause


def unknown(what: str, name: object, known: Iterable[str], error: type[Exception]) -> NoReturn:
    """Refuse a name, listing the valid ones and the nearest."""
    known = list(known)
    near = get_close_matches(str(name), known, n=1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    raise error(f"unknown {what} {name!r}{hint}; valid are: {', '.join(known)}")


# --------------------------------------------------------------------------------------- arrays


def not_an_array(name: str, x: object) -> NoReturn:
    """Refuse what is neither an array, nor a list, nor a number."""
    kind = type(x)
    title = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    remedy = f"convert it, for example with numpy.asarray({name})"
    if title.startswith("scipy.sparse"):
        remedy = f"make it dense: {name}.toarray()"
    raise TypeError(
        f"`{name}` must be an array of NumPy or another Array API library, or a list of numbers, "
        f"got {title}; {remedy}"
    )


def subclass(name: str, x: object) -> NoReturn:
    """Refuse a NumPy subclass whose meaning (a mask, a unit, a product) would be lost."""
    remedy = f"pass numpy.asarray({name}) if that does not matter"
    if type(x).__name__ == "MaskedArray":
        remedy = f"pass {name}.filled(0) and say what is masked with `mask` or `key_lengths`"
    raise TypeError(
        f"`{name}` must be a plain numpy.ndarray, got its subclass {type(x).__name__}, whose own "
        f"meaning would be lost; {remedy}"
    )


def ragged(name: str) -> NoReturn:
    """Refuse nested lists of unequal lengths."""
    raise ValueError(f"`{name}` must be a regular array: its nested lists have unequal lengths")


def unusable(name: str, what: str, remedy: str) -> NoReturn:
    """Refuse an array that has no plain values in memory, or whose gradient would be lost."""
    raise TypeError(f"`{name}` must be an array with plain values, got {what}; {remedy}")


def two_libraries(first: str, one: str, second: str, other: str) -> NoReturn:
    """Refuse arrays of two libraries in one call."""
    raise TypeError(
        f"all arrays must be of one library: `{first}` is of {one}, `{second}` of {other}; "
        "convert one of them"
    )


def number_type(name: str, dtype: str) -> None:
    """Refuse types that are not real numbers, or that have no place in the promotion table."""
    if dtype not in NUMBERS:
        raise TypeError(
            f"`{name}` must hold real numbers, got {dtype}; taken are {', '.join(FLOATS)}, "
            "integers and bool"
        )


def mask_type(dtype: str) -> None:
    """Refuse masks that are not bool."""
    if dtype == "bool":
        return
    if dtype in FLOATS:
        remedy = "a float mask that is added to the scores is `bias`"
    else:
        remedy = "True means may attend: pass mask.astype(bool), or mask != 0"
    raise TypeError(f"`mask` must be bool, got {dtype}; {remedy}")


def bias_type(name: str, dtype: str) -> None:
    """Refuse a bias or sinks that are not numbers; bool belongs to `mask`."""
    if dtype == "bool":
        remedy = "; a bool array that allows and forbids is `mask`" if name == "bias" else ""
        raise TypeError(f"`{name}` must hold numbers, got bool{remedy}")
    number_type(name, dtype)


# --------------------------------------------------------------------------------------- shapes


def ranks(shapes: Mapping[str, Shape]) -> None:
    """Refuse arrays without a length and a head size."""
    letters = {
        "query": "(..., H, T, D)",
        "key": "(..., G, S, D)",
        "value": "(..., G, S, E)",
        "weights": "(..., T, S)",
    }
    for name, shape in shapes.items():
        if len(shape) < 2:
            raise ValueError(
                f"`{name}` must have at least two axes, {letters[name]}, got shape {shape}"
            )


def sizes(query: Shape, key: Shape, value: Shape | None) -> None:
    """Refuse head sizes and lengths that do not fit."""
    if key[-1] != query[-1]:
        raise ValueError(
            f"`key` must have the head size of `query`: need {query[-1]}, got {key[-1]} "
            f"(shape {key})"
        )
    if value is not None and value[-2] != key[-2]:
        raise ValueError(
            f"`value` must have the length of `key`: need {key[-2]}, got {value[-2]} "
            f"(shape {value}, key {key})"
        )


def key_heads(key: int, value: int) -> None:
    """Refuse key and value head counts that differ."""
    if key != value and 1 not in (key, value):
        raise ValueError(
            f"`key` and `value` must have the same number of heads, or one of them 1: "
            f"got {key} and {value}"
        )


def query_heads(query: int, key: int) -> None:
    """Refuse query heads that cannot be shared out over the key heads."""
    if query == key or query == 1 or key == 1 or (query and key and query % key == 0):
        return
    raise ValueError(
        f"the heads of `query` must be a multiple of those of `key` and `value`: got {query} query "
        f"heads and {key} key heads (axis -3)"
    )


def leading(shapes: Mapping[str, Shape]) -> Shape:
    """Return the broadcast of the leading axes, or refuse them."""
    rank = max(map(len, shapes.values()))
    result: list[int] = []
    for axis in range(rank):
        found: dict[int, str] = {}
        for name, shape in shapes.items():
            place = axis - (rank - len(shape))
            size = shape[place] if place >= 0 else 1
            if size != 1:
                found.setdefault(size, name)
        if len(found) > 1:
            (one, first), (two, second) = list(found.items())[:2]
            raise ValueError(
                f"leading axes must broadcast: `{first}` has {one} and `{second}` has {two} in "
                f"axis {axis - rank} before the heads (shapes {shapes[first]} and {shapes[second]})"
            )
        result.append(next(iter(found), 1))
    return tuple(result)


def broadcasts(name: str, shape: Shape, target: Shape, letters: str) -> None:
    """Refuse a shape that does not broadcast to `target`, or would enlarge it."""
    if len(shape) > len(target):
        raise ValueError(
            f"`{name}` must not have more axes than {letters}: got {len(shape)} axes {shape} for "
            f"{target}; drop or reduce the extra axes"
        )
    for place, (size, wanted) in enumerate(zip(reversed(shape), reversed(target), strict=False), 1):
        if size not in (1, wanted):
            raise ValueError(
                f"`{name}` must broadcast to {letters}: need 1 or {wanted} in axis -{place}, got "
                f"{size} (shape {shape} against {target}); axes are matched from the right"
            )


def result_array(name: str, shape: Shape, dtype: str, wanted: Shape, wanted_type: str) -> None:
    """Refuse an `out` that is not exactly what the result would be."""
    if shape != wanted or dtype != wanted_type:
        raise ValueError(
            f"`{name}` must have exactly the result's shape and type: need {wanted} {wanted_type}, "
            f"got {shape} {dtype}"
        )


def out_kind(name: str, what: str) -> NoReturn:
    """Refuse an `out` of another library, or one that cannot be written to."""
    raise TypeError(f"`{name}` must be a writable array of the inputs' library, got {what}")


def out_value(name: str, what: str) -> NoReturn:
    """Refuse an `out` that is read-only or overlaps an input."""
    raise ValueError(f"`{name}` must be writable and overlap no input: {what}")


def apart(overlap: bool) -> None:
    """Refuse places for two results that share memory."""
    if overlap:
        raise ValueError("`out` must be two arrays that share no memory")


def out_pair(out: object) -> None:
    """Refuse an `out` of `attention` that is not a pair."""
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise TypeError(
            "`out` of `attention` must be a pair (output, weights), either of them None, got "
            f"{type(out).__name__}; for the output alone use `attend`"
        )


# --------------------------------------------------------------------------------------- numbers


def flag(name: str, x: object) -> bool:
    """Return a bool, or refuse it."""
    if isinstance(x, bool) or type(x).__name__ == "bool":  # numpy.bool
        return bool(x)
    raise TypeError(f"`{name}` must be True or False, got {x!r}")


def integer(name: str, x: object, *, least: int | None = None) -> int:
    """Return an int no smaller than `least`, or refuse it."""
    if isinstance(x, bool) or not isinstance(x, Integral):
        raise TypeError(f"`{name}` must be an int, got {type(x).__name__} {x!r}")
    number = operator.index(x)
    if least is not None and number < least:
        raise ValueError(f"`{name}` must be at least {least}, got {number}")
    return number


def real(name: str, x: object) -> float:
    """Return a finite float, or refuse it; an array of one number might record gradients."""
    if isinstance(x, bool) or not isinstance(x, Real):
        raise TypeError(
            f"`{name}` must be a number, got {type(x).__name__}; of an array of one number pass "
            f"float({name})"
        )
    try:
        number = float(x)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"`{name}` must be finite, got {number}")
    return number


def at_least_zero(name: str, x: object) -> float:
    """Return a finite float no smaller than 0, or refuse it."""
    number = real(name, x)
    if number < 0:
        raise ValueError(f"`{name}` must be at least 0, got {number}")
    return number


def seed(name: str, x: object) -> Any:
    """Return what numpy.random.default_rng makes a generator of, or refuse it."""
    if x is None or hasattr(x, "bit_generator"):
        return x
    if isinstance(x, bool) or not isinstance(x, Integral):
        raise TypeError(
            f"`{name}` must be a seed, a numpy.random.Generator or None, got {type(x).__name__}"
        )
    return integer(name, x, least=0)


def several(name: str, x: object) -> list[Any]:
    """Return the members of a list, or refuse what stands alone."""
    if isinstance(x, str) or not isinstance(x, Iterable):
        raise TypeError(f"`{name}` must be a list, got {type(x).__name__} {x!r}; pass ({x!r},)")
    return list(x)


def thresholds(limits: Any, kind: Any) -> None:
    """Refuse thresholds that are not of their kind, or that no number could pass."""
    if not isinstance(limits, kind):
        raise TypeError(
            f"`thresholds` must be {kind.__name__}, got {type(limits).__name__}; pass for example "
            f"{kind.__name__}(cap=50.0)"
        )
    for name, x in limits._asdict().items():
        if real(f"thresholds.{name}", x) <= 0:
            raise ValueError(
                f"`thresholds.{name}` must be greater than 0, got {x}; leave it out for the default"
            )


def fits(name: str, x: float | None, dtype: str, *, normal: bool = False) -> None:
    """Refuse a number that the type of the sums cannot hold; `normal`: nor one near 0."""
    largest, smallest = (3.4e38, 1.2e-38) if dtype == "float32" else (1.7e308, 2.3e-308)
    if x is not None and (abs(x) > largest or (normal and abs(x) < smallest)):
        raise ValueError(
            f"`{name}` must be a number that {dtype}, the type of the sums, can hold, got {x}"
        )


def scale(x: object, head_size: int) -> float:
    """Return the factor of the scores: 1/√D by default."""
    if x is None:
        return 1.0 / math.sqrt(head_size) if head_size else 1.0
    return real("scale", x)


def softcap(x: object) -> float | None:
    """Return the cap of the scores, or None for none."""
    if x is None:
        return None
    number = real("softcap", x)
    if number <= 0:
        raise ValueError(f"`softcap` must be greater than 0, got {number}; None means no cap")
    return number


def window(x: object) -> tuple[int | None, int | None]:
    """Return (left, right), the keys beside the query's own position; None is unbounded."""
    if x is None:
        return None, None
    if isinstance(x, Integral) and str(x) not in ("True", "False"):
        raise TypeError(
            f"`window` must be a pair (left, right), got the int {x}: ({x}, {x}) sees {x} keys on "
            f"each side of the query's own position, ({x}, 0) only those before it"
        )
    if not isinstance(x, tuple | list) or len(x) != 2:
        raise TypeError(f"`window` must be a pair (left, right) of ints or None, got {x!r}")
    sides: list[int | None] = []
    for side, count in zip(("left", "right"), x, strict=True):
        if count is None:
            sides.append(None)
            continue
        number = integer(f"window ({side})", count)
        if number < 0:
            raise ValueError(
                f"`window` must count keys, 0 or more on each side, got {number} on the {side}; "
                "None means unbounded"
            )
        sides.append(number)
    return sides[0], sides[1]


def position_type(name: str, shape: Shape, dtype: str, lead: Shape, rank: int) -> None:
    """Refuse lengths or offsets that are no ints, or do not fit the leading axes."""
    if dtype not in INTEGERS:
        raise TypeError(f"`{name}` must be int or an array of ints of at most 64 bits, got {dtype}")
    if shape and rank <= 3:
        raise ValueError(
            f"`{name}` must be a single int for a query of {rank} axes, got shape {shape}: it "
            "holds for the axes before the heads; for one per batch give the arrays a head axis, "
            "query[:, None]"
        )
    broadcasts(name, shape, lead, "the axes before the heads")


def position_range(name: str, least: int, most: int, low: int, high: int, what: str) -> None:
    """Refuse lengths or offsets outside [low, high]."""
    if least < low or most > high:
        wrong = least if least < low else most
        raise ValueError(f"`{name}` must be between {low} and {high}, {what}: got {wrong}")


def positions_known(uses: Sequence[str], given: str, n_keys: int, n_queries: int) -> NoReturn:
    """Refuse to guess where the queries stand when lengths of one side alone are given."""
    last = f"key_lengths - {n_queries}" if given == "key_lengths" else f"{n_keys} - query_lengths"
    raise ValueError(
        f"{', '.join(f'`{use}`' for use in uses)} needs the position of the queries, and "
        f"`{given}` alone does not give it: pass query_offset=0 for a padded batch, "
        f"query_offset={last} where the last query stands at the last key"
    )


def row_numbers(shape: Shape, dtype: str) -> None:
    """Refuse rows that are no list of ints."""
    if len(shape) != 1 or (dtype not in INTEGERS and shape != (0,)):
        raise TypeError(f"`rows` must be a list of ints, got {dtype} of shape {shape}")


def layers(query: Shape, key: Shape) -> None:
    """Refuse to count layers without an axis of them."""
    if max(len(query), len(key)) < 4:
        raise ValueError(
            "`layers` needs an axis of layers before the heads, (layers, ..., H, T, D): got query "
            f"of shape {query}"
        )


def rows_needed(asked: bool, given: bool) -> None:
    """Refuse `weights_of` without rows, and rows without `weights_of`."""
    if asked and not given:
        raise ValueError(
            "`weights_of` needs `rows`, the numbers of the query rows whose weights are wanted: "
            "rows=[0, 5]; for all of them use `attention`"
        )
    if given and not asked:
        raise ValueError(
            "`rows` chooses the rows of `weights_of`, which is not among the statistics asked for: "
            "add 'weights_of' to them"
        )


def wanted(wrt: Iterable[str], given: Iterable[str]) -> None:
    """Refuse a gradient by an argument that was not given."""
    for name in wrt:
        if name not in given:
            raise ValueError(f"`wrt` must name arguments of this call: `{name}` was not given")


def value_needed(name: str) -> NoReturn:
    """Refuse a call without values where an output is wanted."""
    raise TypeError(
        f"`{name}` needs a `value`, got None; statistics without one come from `observe`"
    )


def head(x: object, front: Shape) -> Shape:
    """Return the place of one head in (..., H), or refuse it; None is the only one there is."""
    if 0 in front:
        raise ValueError(f"there must be a head to show: the axes before the rows are {front}")
    first = (0,) * len(front)
    if x is None and math.prod(front) == 1:
        return first
    numbers = x if isinstance(x, tuple) else (x,)
    if x is None or len(numbers) != len(front):
        raise ValueError(
            f"`head` must be a place in {front}, the axes before the rows: got {x}; "
            f"head={first[0] if len(first) == 1 else first or None} is the first"
        )
    place = []
    for number, size in zip(numbers, front, strict=True):
        one = integer("head", number)
        if not -size <= one < size:
            raise ValueError(f"`head` must be a place in {front}, got {x}")
        place.append(one % size)
    return tuple(place)


def cells(x: object) -> tuple[int, int]:
    """Return how many cells there may be for queries and for keys, or refuse them."""
    if not isinstance(x, tuple | list) or len(x) != 2:
        raise TypeError(f"`cells` must be a pair (for queries, for keys), got {x!r}")
    rows, columns = (integer("cells", n, least=1) for n in x)
    return rows, columns


def made_by(result: object, source: str, *kinds: type) -> None:
    """Refuse to draw what another function returned."""
    if not isinstance(result, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(
            f"`result` must be of kind {names}, as {source} returns it, got {type(result).__name__}"
        )


def not_axes(x: object) -> NoReturn:
    """Refuse to draw on what is no Axes."""
    raise TypeError(
        f"`ax` must be Axes of matplotlib, got {type(x).__name__}; figure.subplots() makes them"
    )


def panels(n_axes: int, n: int) -> None:
    """Refuse axes that are not one for each panel."""
    if n_axes == n:
        return
    if n == 1:
        raise ValueError(f"`ax` must be one Axes, got {n_axes} of them; pass the one to draw on")
    raise ValueError(
        f"`ax` must be {n} Axes, one for each panel, got {n_axes}; figure.subplots(1, {n}) makes "
        "them"
    )


def token_names(name: str, names: Sequence[str] | None, n: int) -> None:
    """Refuse names that are not one for each token."""
    if names is None:
        return
    if isinstance(names, str):
        raise TypeError(f"`{name}` must be a list of names, got one string; split it into tokens")
    if len(names) != n:
        raise ValueError(f"`{name}` must name each of {n} tokens, got {len(names)} names")


def observed(found: Mapping[str, object]) -> None:
    """Refuse to show statistics that were not asked for."""
    missing = [name for name, x in found.items() if x is None]
    if missing:
        raise ValueError(
            f"the observation must hold {' and '.join(missing)}: "
            f"observe(query, key, statistics={tuple(found)})"
        )


def gradients_given(names: Sequence[str]) -> NoReturn:
    """Refuse a pullback of nothing."""
    raise ValueError(f"a pullback needs at least one gradient to pull back: {', '.join(names)}")


def gradient(name: str, shape: Shape, dtype: str, wanted_shape: Shape) -> None:
    """Refuse an incoming gradient that does not fit what it is the gradient of."""
    number_type(name, dtype)
    if shape != wanted_shape:
        raise ValueError(
            f"`{name}` must have the shape of what it is the gradient of: need {wanted_shape}, got "
            f"{shape}"
        )


def part(parts_so_far: int, output: Shape, log_sum_exp: Shape, first: Shape | None) -> None:
    """Refuse parts of a merge that do not fit."""
    if output[:-1] != log_sum_exp or not output:
        raise ValueError(
            f"part {parts_so_far} must be (output, log_sum_exp) of shapes (..., E) and (...), got "
            f"{output} and {log_sum_exp}"
        )
    if first is not None and output != first:
        raise ValueError(
            f"all parts must have the same shapes: part {parts_so_far} has an output of {output}, "
            f"the first {first}"
        )


def part_kind(parts_so_far: int, part: object) -> None:
    """Refuse a part that is not a pair."""
    if not isinstance(part, tuple | list) or len(part) != 2:
        raise TypeError(
            f"part {parts_so_far} must be a pair (output, log_sum_exp), got {type(part).__name__}"
        )


def parts_kind(parts: object) -> None:
    """Refuse parts that are no iterable."""
    if not isinstance(parts, Iterable):
        raise TypeError(
            f"`parts` must be an iterable of pairs (output, log_sum_exp), got "
            f"{type(parts).__name__}"
        )


def no_parts() -> NoReturn:
    """Refuse to merge nothing."""
    raise ValueError("`parts` must hold at least one pair (output, log_sum_exp), got none")


def axes(axis: object, rank: int) -> tuple[int, ...]:
    """Return axes counted from 0, or refuse them."""
    if axis is None:
        return tuple(range(rank))
    several = axis if isinstance(axis, tuple) else (axis,)
    found = []
    for one in several:
        number = integer("axis", one)
        if not -rank <= number < rank:
            raise ValueError(f"`axis` must be an axis of an array of {rank}, got {number}")
        found.append(number % rank)
    if len(set(found)) != len(found):
        raise ValueError(f"`axis` must not name an axis twice, got {axis}")
    return tuple(found)


def engine_cannot(engine: str, obstacle: str) -> NoReturn:
    """Refuse an engine asked for by name that cannot do the call."""
    raise ValueError(
        f"engine {engine!r} cannot do this: {obstacle}; leave `engine` out and the plan chooses"
    )


def choice(what: str, name: object, known: Sequence[str]) -> str:
    """Return one of the known names, or refuse it."""
    if not isinstance(name, str):
        raise TypeError(f"`{what}` must be a name, got {type(name).__name__}")
    if name not in known:
        unknown(what, name, known, ValueError)
    return name


def choices(what: str, names: object, known: Sequence[str]) -> tuple[str, ...]:
    """Return one or several of the known names in the order of `known`, or refuse them."""
    if isinstance(names, str):
        names = (names,)
    if not isinstance(names, Iterable):
        raise TypeError(f"`{what}` must be a name or several, got {type(names).__name__}")
    chosen = {choice(what, name, known) for name in names}
    return tuple(name for name in known if name in chosen)
