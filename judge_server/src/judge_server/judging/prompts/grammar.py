"""The subset of Jinja that a prompt template may use: text, its variables, conditions, and a loop over the criteria.

There are no calls, assignments or arithmetic. Rendering a template that passes the check therefore always ends, raises
nothing, and shows a fenced text in full or not at all, whoever wrote the template.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

from jinja2 import nodes

from trainer_client.wire.criteria import GUIDANCE_FIELDS

FENCED_VARIABLES = frozenset(
    {"prompt", "grounding", "reference_answer", "response", "ground_truth", "final_answer", "a", "b"}
)
"""Variables whose texts are fenced."""

CRITERION: Mapping[str, type] = {
    **{"description": str, "kind": str, "scale": int, "points": str, "negative": bool},
    **dict.fromkeys(GUIDANCE_FIELDS, str),
}
"""The attributes of a criterion that a template may read."""

LOOP: Mapping[str, type] = {
    **dict.fromkeys(("index", "index0", "revindex", "revindex0", "length"), int),
    **dict.fromkeys(("first", "last"), bool),
}
"""The attributes of a loop that a template may read."""

FILTERS = ("capitalize", "length", "lower", "title", "trim", "upper")

_OBJECTS = frozenset({"criteria", "criterion"})
_ORDERED = ("lt", "lteq", "gt", "gteq")
_TAG_NAMES = {"Assign": "set", "AssignBlock": "set", "FilterBlock": "filter", "CallBlock": "call", "FromImport": "from"}
_MAX_DEPTH = 40
_ALLOWED_HINT = "a template may hold text, {{ … }}, {% if %}, and {% for … in criteria %}"


class TemplateGrammarError(ValueError):
    """A template uses something that is not allowed, at `line`."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def check_grammar(template: nodes.Template, given: Collection[str]) -> None:
    """Check a parsed template that gets these variables.

    Raises:
        TemplateGrammarError: at the first thing that is not allowed.
    """
    if _depth(template) > _MAX_DEPTH:
        raise TemplateGrammarError(template.lineno, f"it is nested more than {_MAX_DEPTH} deep; make it simpler")
    _GrammarChecker({name: CRITERION if name == "criterion" else None for name in given}).statements(template.body)


class _GrammarChecker:
    """Checks the nodes of one scope. `names` are its variables, with the attributes of each."""

    def __init__(self, names: Mapping[str, Mapping[str, type] | None], *, looping: bool = False) -> None:
        self._names = names
        self._looping = looping

    def statements(self, body: Sequence[nodes.Node]) -> None:
        """Check text, output, conditions and loops."""
        for node in body:
            if isinstance(node, nodes.Output):
                for piece in node.nodes:
                    if not isinstance(piece, nodes.TemplateData):
                        self.shown(piece)
            elif isinstance(node, nodes.If):
                self.condition(node.test)
                for part in (node.body, node.elif_, node.else_):
                    self.statements(part)
            elif isinstance(node, nodes.For):
                self._loop(node)
            else:
                kind = type(node).__name__
                _refuse(
                    node,
                    f"{{% {_TAG_NAMES.get(kind, kind.lower())} %}} is not allowed in prompt templates; {_ALLOWED_HINT}",
                )

    def _loop(self, loop: nodes.For) -> None:
        if not (isinstance(loop.iter, nodes.Name) and loop.iter.name == "criteria" and "criteria" in self._names):
            _refuse(loop, f"it loops over something other than criteria; {_ALLOWED_HINT}")
        if self._looping or loop.recursive:
            _refuse(loop, "it has a loop inside a loop; loop over the criteria once")
        if not isinstance(loop.target, nodes.Name) or loop.target.name in {*self._names, "loop"}:
            _refuse(loop, "the loop variable needs a name of its own: {% for criterion in criteria %}")
        criterion = {**self._names, loop.target.name: CRITERION}
        if loop.test is not None:
            _GrammarChecker(criterion).condition(loop.test)
        _GrammarChecker({**criterion, "loop": LOOP}, looping=True).statements(loop.body)
        self.statements(loop.else_)

    def shown(self, node: nodes.Node) -> None:
        """Check the content of {{ … }}."""
        if isinstance(node, nodes.CondExpr):
            if node.expr2 is None:
                _refuse(node, "an if inside {{ … }} needs an else")
            self.condition(node.test)
            self.shown(node.expr1)
            self.shown(node.expr2)
        elif isinstance(node, nodes.Concat):
            for part in node.nodes:
                self.shown(part)
        elif isinstance(node, nodes.Name) and self._name(node) in FENCED_VARIABLES:
            return
        else:
            self._value(node)

    def condition(self, node: nodes.Node) -> None:
        """Check the condition of {% if %}."""
        if isinstance(node, nodes.And | nodes.Or):
            self.condition(node.left)
            self.condition(node.right)
        elif isinstance(node, nodes.Not) or (isinstance(node, nodes.Test) and node.name in ("defined", "none")):
            self.condition(node.node)
        elif isinstance(node, nodes.Compare):
            self._comparison(node)
        elif isinstance(node, nodes.Name):
            self._name(node)
        else:
            self._value(node)

    def _comparison(self, node: nodes.Compare) -> None:
        left: nodes.Node = node.expr
        for operand in node.ops:
            right = operand.expr
            if operand.op in ("in", "notin"):
                if not isinstance(right, nodes.Tuple | nodes.List):
                    _refuse(node, '"in" needs a list of values, as in criterion.kind in ("pitfall", "bonus")')
                self._value(left)
                for item in right.items:
                    self._value(item)
                continue
            types = [self._value(side) for side in (left, right)]
            if operand.op in _ORDERED and not set(types) <= {int, float}:
                _refuse(node, "only numbers can be compared by size: scale, loop.index, criteria|length")
            left = right

    def _value(self, node: nodes.Node) -> type:
        """Check an expression that is not fenced text, and return its type."""
        if isinstance(node, nodes.Const):
            return type(node.value)
        if isinstance(node, nodes.Name):
            name = self._name(node)
            if name in FENCED_VARIABLES:
                _refuse(node, f"{name} may only be shown as it is, {{{{ {name} }}}}, not changed or compared")
            if name in _OBJECTS or self._names[name] is not None:
                _refuse(node, f"{name} cannot be shown by itself; write {{{{ criterion.description }}}}")
            return str
        if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
            return self._attribute(node, node.node)
        if isinstance(node, nodes.Filter) and node.node is not None:
            return self._filtered(node, node.node)
        _refuse(node, f"a template cannot compute ({type(node).__name__.lower()}); it may only show its variables")

    def _attribute(self, node: nodes.Getattr, base: nodes.Name) -> type:
        attributes = self._names[self._name(base)]
        if attributes is None or node.attr not in attributes:
            hint = f"; it has {', '.join(sorted(attributes))}" if attributes else ""
            _refuse(node, f"{base.name} has no {node.attr!r}{hint}")
        return attributes[node.attr]

    def _filtered(self, node: nodes.Filter, operand: nodes.Expr) -> type:
        if node.name not in FILTERS or node.args or node.kwargs or node.dyn_args or node.dyn_kwargs:
            _refuse(node, f"it uses the filter {node.name!r}; only {', '.join(FILTERS)} are allowed, without arguments")
        if node.name == "length":
            if not (isinstance(operand, nodes.Name) and self._name(operand) == "criteria"):
                _refuse(node, "only criteria have a length: {{ criteria|length }}")
            return int
        self._value(operand)
        return str

    def _name(self, node: nodes.Name) -> str:
        if node.name not in self._names:
            given = ", ".join(sorted(self._names)) or "none"
            _refuse(node, f"it uses {node.name!r}, which is not one of its variables: {given}")
        return node.name


def _depth(node: nodes.Node) -> int:
    level, depth = [node], 0
    while level:
        level, depth = [child for one in level for child in one.iter_child_nodes()], depth + 1
    return depth


def _refuse(node: nodes.Node, message: str) -> NoReturn:
    raise TemplateGrammarError(node.lineno, message)
