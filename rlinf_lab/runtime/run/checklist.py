"""A list of things that were looked at. It says what is there, what is missing, and what mends it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from html import escape

OK, OPTIONAL, BROKEN = "ok", "optional", "broken"
_SIGNS = {OK: "✓", OPTIONAL: "–", BROKEN: "✗"}


@dataclass(frozen=True)
class Check:
    """One line of a report. ``status``: "ok", "optional" (missing, not needed) or "broken"; ``mend``: what to do about
    it.
    """

    name: str
    status: str
    found: str
    mend: str = ""


@dataclass(frozen=True)
class Report:
    """All checks. ``title``: of what. ``ok`` is False when something that is needed is broken."""

    title: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(c.status != BROKEN for c in self.checks)

    @property
    def broken(self) -> list[Check]:
        return [c for c in self.checks if c.status == BROKEN]

    def __getitem__(self, name: str) -> Check:
        return next(c for c in self.checks if c.name == name)

    def to_json(self) -> str:
        """``{"ok": bool, "checks": [{"name", "status", "found", "mend"}, ...]}``"""
        return json.dumps({"ok": self.ok, "checks": [asdict(c) for c in self.checks]}, indent=1)

    def _head(self) -> str:
        return f"{self.title}: {'ready' if self.ok else 'something is broken'}"

    def __repr__(self) -> str:
        width = max(len(c.name) for c in self.checks)
        lines = [self._head()]
        for c in self.checks:
            lines.append(f"  {_SIGNS[c.status]} {c.name:<{width}}  {c.found}")
            if c.mend:
                lines.append(f"    {'':<{width}}  mend: {c.mend}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        colour = {OK: "#3ca578", OPTIONAL: "#888", BROKEN: "#c3001e"}
        rows = "".join(
            f"<tr><td style='color:{colour[c.status]};text-align:center'>{_SIGNS[c.status]}</td><td "
            f"style='text-align:left'><b>{escape(c.name)}</b></td>"
            f"<td style='text-align:left'>{escape(c.found)}</td><td "
            f"style='text-align:left'>{f'<code>{escape(c.mend)}</code>' if c.mend else ''}</td></tr>"
            for c in self.checks
        )
        return f"<div><b>{escape(self._head())}</b><table><tbody>{rows}</tbody></table></div>"
