"""Reads the code of workflows for what would differ between a run and its replay, or be shared between runs.

Names are followed: through imports under any name, also out of another module of ours, through assignments, attributes,
defaults and `getattr`. What is forbidden is forbidden as a mention, called or not: a clock that is passed on is called
elsewhere. Where a name cannot be followed any more (a module that is kept in a collection) that itself is an offence.
Values of modules and classes, and defaults, are shared by all runs of a worker: each must be one that cannot change, or
be declared as one that nobody may change (`Mapping`, `Sequence`), which the type checker then keeps.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

STANDARD = {
    "__future__", "abc", "asyncio", "collections", "contextlib", "dataclasses", "datetime", "decimal", "enum",
    "functools", "ipaddress", "itertools", "math", "operator", "re", "string", "textwrap", "types", "typing", "uuid",
}  # fmt: skip
"""Modules without clock, chance and I/O, but for what is named below."""
LIBRARIES = ("pydantic", "temporalio.common", "temporalio.exceptions", "temporalio.workflow")
OURS = ("hatchway", "workflows", "activities")

FORBIDDEN = {
    f"{owner}.{name}"
    for owner, names in {
        "datetime.datetime": "now utcnow today fromtimestamp utcfromtimestamp",
        "datetime.date": "today fromtimestamp",
        "uuid": "uuid1 uuid4 uuid6 uuid7 uuid8 getnode",  # workflow.uuid4 is the same on replay
        "asyncio": "wait as_completed to_thread run Runner open_connection open_unix_connection start_server "
        "start_unix_server create_subprocess_exec create_subprocess_shell",  # workflow.wait keeps the order
        "functools": "cache lru_cache cached_property",  # a run would find what another one has left
        "builtins": "open print input hash id eval exec compile globals vars locals breakpoint __import__ "
        "__builtins__",  # hash and id differ from process to process
    }.items()
    for name in names.split()
}
CARRIERS = {"datetime", "datetime.datetime", "datetime.date", "uuid", "asyncio", "functools"}
"""What the forbidden hangs on."""
UNIMPORTED = {"datetime": "datetime.datetime", "date": "datetime.date", "uuid": "uuid", "uuid4": "uuid.uuid4",
              "asyncio": "asyncio"}  # fmt: skip
"""What a name means in a piece of code that imports nothing."""
ASKS_FOR_A_TYPE = {"isinstance", "issubclass", "cast"}

MAKES_WHAT_CANNOT_CHANGE = {
    "frozenset", "tuple", "timedelta", "datetime", "Decimal", "TypeVar", "compile", "for_keyword", "MappingProxyType",
    "RetryPolicy",  # it could be changed; every run gives it to the SDK, which reads it
    "Field", "field", "ConfigDict", "StringConstraints", "BeforeValidator", "dataclass",
}  # fmt: skip
READ_ONLY = {"Mapping", "Sequence", "Collection", "Set"}
"""Of collections.abc: without a way to change them."""

Names = dict[str, set[str]]


class Module:
    """One module's names, and what each may stand for. `exports`: what names of our other modules stand for."""

    def __init__(self, source: str, exports: Mapping[str, set[str]] | None = None) -> None:
        self.tree = ast.parse(source)
        self.exports = exports or {}
        self.names: Names = defaultdict(set)
        self.attributes: Names = defaultdict(set)
        self.imported: list[tuple[int, str]] = []
        self.classes = {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)}
        self._import()
        while self._bind():
            """Until nothing new comes: a name may be bound further down than it is passed on."""

    def _import(self) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    self.imported.append((node.lineno, name.name))
                    self.names[name.asname or name.name.partition(".")[0]] |= self._known(
                        name.name if name.asname else name.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                for name in node.names:
                    whole = f"{'.' * node.level}{node.module or ''}.{name.name}"
                    self.imported.append((node.lineno, whole))
                    self.names[name.asname or name.name] |= self._known(whole)

    def _known(self, dotted: str) -> set[str]:
        return {dotted} | self.exports.get(dotted, set())

    def _bind(self) -> bool:
        before = sum(map(len, [*self.names.values(), *self.attributes.values()]))
        for node in ast.walk(self.tree):
            for target, value in _bindings(node):
                found = self.meanings(value)
                if isinstance(target, ast.Name):
                    self.names[target.id] |= found
                    self.attributes[target.id] |= found if found & CARRIERS else set()
                elif isinstance(target, ast.Attribute):
                    self.attributes[target.attr] |= found
        return sum(map(len, [*self.names.values(), *self.attributes.values()])) > before

    def meanings(self, node: ast.expr) -> set[str]:
        """Every dotted name that this expression may stand for."""
        match node:
            case ast.Name(id=name):
                known = self.names.get(name) or ({UNIMPORTED[name]} if name in UNIMPORTED else set())
                return known or ({f"builtins.{name}"} if f"builtins.{name}" in FORBIDDEN else set())
            case ast.Attribute(value=owner, attr=name):
                of = {whole for one in self.meanings(owner) for whole in self._known(f"{one}.{name}")}
                return of | self.attributes.get(name, set())
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), *_]):
                return {f"{one}.{name}" for one in self.meanings(owner)}
            case ast.IfExp(body=one, orelse=other):
                return self.meanings(one) | self.meanings(other)
            case ast.BoolOp(values=values):
                return set().union(*map(self.meanings, values))
            case ast.NamedExpr(value=value):
                return self.meanings(value)
        return set()

    # ── what differs on replay ──────────────────────────────────────────────────────────────────────────────────

    def offences(self) -> list[str]:
        """Every use of what differs between a run and its replay, or that runs would share, with its line."""
        found = [*self._imports(), *self._mentions(), *self._shared()]
        return [f"{line}: {what}" for line, what in sorted(set(found))]

    def _imports(self) -> Iterator[tuple[int, str]]:
        for line, whole in self.imported:
            if whole.endswith(".*"):
                yield line, f"imports {whole}: its names cannot be followed"
            elif whole in FORBIDDEN or not _within(whole, (*STANDARD, *OURS, *LIBRARIES)):
                yield line, f"imports {whole}"

    def _mentions(self) -> Iterator[tuple[int, str]]:
        followed = self._followed()
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.expr):
                continue
            meanings = self.meanings(node) if isinstance(node, ast.Name | ast.Attribute | ast.Call) else set()
            loaded = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            for bad in sorted(meanings & FORBIDDEN) if loaded else ():
                yield node.lineno, f"mentions {bad}"
            if isinstance(node, ast.Name | ast.Attribute) and meanings & CARRIERS and loaded and node not in followed:
                yield node.lineno, f"passes {ast.unparse(node)} on to where it cannot be followed"
            match node:
                case ast.Call(func=ast.Attribute(attr="astimezone"), args=[], keywords=[]):
                    yield node.lineno, "calls astimezone without a zone: each machine has its own"
                case ast.Call(func=ast.Name(id="getattr"), args=[owner, name, *_]) if self.meanings(owner) & CARRIERS:
                    if not isinstance(name, ast.Constant):
                        yield node.lineno, f"looks up what it computes in {ast.unparse(owner)}"

    def _followed(self) -> set[ast.AST]:
        """Expressions whose meaning is followed on from where they stand, or that only name a type."""
        found: set[ast.AST] = set()
        for node in ast.walk(self.tree):
            found.update(value for _, value in _bindings(node))
            match node:
                case ast.Attribute(value=owner) | ast.Call(func=owner):
                    found.add(owner)
                case ast.IfExp(body=one, orelse=other):
                    found |= {one, other}
                case ast.BoolOp(values=values) | ast.Compare(comparators=values):
                    found.update(values)
                case ast.Subscript(slice=inside):
                    found.update(ast.walk(inside))
            match node:
                case ast.Call(func=ast.Name(id=name), args=args) if name in {*ASKS_FOR_A_TYPE, "getattr"}:
                    found.update(inner for arg in args for inner in ast.walk(arg))
                case ast.BinOp(op=ast.BitOr()):
                    found.update(ast.walk(node))
                case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=ast.expr() as annotation):
                    found.update(ast.walk(annotation))
                case ast.FunctionDef(returns=ast.expr() as annotation):
                    found.update(ast.walk(annotation))
                case ast.AsyncFunctionDef(returns=ast.expr() as annotation):
                    found.update(ast.walk(annotation))
                case ast.MatchClass(cls=cls):
                    found.add(cls)
        return found

    # ── what runs would share ───────────────────────────────────────────────────────────────────────────────────

    def _shared(self) -> Iterator[tuple[int, str]]:
        for value, annotation in self._values_shared():
            if not self._cannot_change(value) and not self._declared_read_only(value, annotation):
                yield value.lineno, f"shares {ast.unparse(value)[:60]}, which a run could change"
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Global):
                yield node.lineno, f"binds {', '.join(node.names)} anew for every run"
            elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                owner = ast.unparse(node.value)
                if owner in {"cls", "type(self)", "self.__class__", *self.classes} or self._is_import(owner):
                    yield node.lineno, f"binds {ast.unparse(node)} anew for every run"

    def _is_import(self, name: str) -> bool:
        known = tuple(self.names.get(name, ()))
        return any(_within(whole, known) for _, whole in self.imported)

    def _values_shared(self) -> Iterator[tuple[ast.expr, ast.expr | None]]:
        bodies = [(self.tree.body, False)]
        bodies += [(node.body, self._copies_defaults(node)) for node in self.classes.values()]
        for body, copied in bodies:
            for statement in body:
                if isinstance(statement, ast.Assign):
                    # __all__ is for those who read the module, not for its code.
                    if ast.unparse(statement.targets[0]) != "__all__":
                        yield statement.value, None
                elif isinstance(statement, ast.AnnAssign) and statement.value is not None and not copied:
                    yield statement.value, statement.annotation
        for node in ast.walk(self.tree):
            if isinstance(node, ast.arguments):
                for default in [*node.defaults, *(value for value in node.kw_defaults if value is not None)]:
                    yield default, None

    def _copies_defaults(self, node: ast.ClassDef) -> bool:
        """Pydantic gives each instance a copy of a field's default."""
        bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
        meanings = {name for base in bases for name in self.names.get(base, ())}
        if "BaseModel" in bases or any(name.startswith(("hatchway.model.", "hatchway.payloads.")) for name in meanings):
            return True
        return any(base in self.classes and self._copies_defaults(self.classes[base]) for base in bases)

    def _cannot_change(self, value: ast.expr) -> bool:
        match value:
            case ast.Tuple(elts=parts) | ast.BoolOp(values=parts):
                return all(map(self._cannot_change, parts))
            case ast.BinOp(left=one, right=other) | ast.IfExp(body=one, orelse=other):
                return self._cannot_change(one) and self._cannot_change(other)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return name in MAKES_WHAT_CANNOT_CHANGE or self._is_frozen(name)
        return isinstance(value, ast.Constant | ast.Name | ast.Attribute | ast.UnaryOp | ast.Compare | ast.Lambda
                          | ast.JoinedStr | ast.Subscript)  # fmt: skip

    def _is_frozen(self, name: str) -> bool:
        """Whether it is a class of this module that is a frozen dataclass."""
        decorators = self.classes[name].decorator_list if name in self.classes else []
        return any("frozen=True" in ast.unparse(decorator) for decorator in decorators)

    def _declared_read_only(self, value: ast.expr, annotation: ast.expr | None) -> bool:
        """`X: Mapping[…] = {…}`, of parts that cannot change themselves."""
        match annotation:
            case ast.Subscript(value=ast.Name(id=name)) if name in READ_ONLY:
                match value:
                    case ast.Dict(values=parts):
                        return all(map(self._cannot_change, parts))
                    case ast.List(elts=parts) | ast.Set(elts=parts):
                        return all(map(self._cannot_change, parts))
        return False


def exports_of(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """What the names of these modules (dotted name to source) stand for, also through one another."""
    exports: dict[str, set[str]] = {}
    while True:
        found = {
            f"{module}.{name}": meanings
            for module, source in modules.items()
            for name, meanings in Module(source, exports).names.items()
        }
        if found == exports:
            return exports
        exports = found


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Which targets come to mean which values by this node."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _pairs(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.For(target=target, iter=ast.Tuple(elts=values) | ast.List(elts=values)):
            for value in values:
                yield from _pairs(target, value)
        case ast.arguments():
            positional = [*node.posonlyargs, *node.args]
            defaults = node.defaults
            for argument, value in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
                yield ast.Name(argument.arg, ast.Store()), value
            for argument, default in zip(node.kwonlyargs, node.kw_defaults, strict=True):
                if default is not None:
                    yield ast.Name(argument.arg, ast.Store()), default


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, other)
    else:
        yield target, value


def _within(whole: str, packages: tuple[str, ...]) -> bool:
    return any(whole == package or whole.startswith(f"{package}.") for package in packages)
