"""Methods whose answers an object keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])


def cached_method(method: Method) -> Method:
    """As `functools.cache`, but each object keeps its own answers, and they go when it goes. Arguments by position."""
    name = f"_answers_of_{method.__name__}"

    @functools.wraps(method)
    def answer(self: Any, *key: Any) -> Any:
        known = self.__dict__.setdefault(name, {})
        if key not in known:
            known[key] = method(self, *key)
        return known[key]

    return cast(Method, answer)
