"""The automaton of a pattern: a program whose threads read one row after another.

It is the nondeterministic automaton of Thompson's construction, as a list of instructions (Pike's
virtual machine; Russ Cox, "Regular Expression Matching: the Virtual Machine Approach"). A Split
names the preferred way first, so that the order of threads is the standard's order of preferment:
greedy before less, reluctant before more, alternatives from left to right.

An iteration of a quantifier beyond those that it needs has at least one row: else `(A?)*` would
never end.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from headwater.errors import PipelineError
from headwater.pipelines.operators.patterns.language.pattern_tree import (
    Alternation,
    Excluded,
    PartitionStart,
    Repeated,
    Sequence,
    StepDeadline,
    Tree,
    Variable,
    is_nullable,
    variables_of,
)

_MOST_INSTRUCTIONS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Take:
    """A row of this variable."""

    label: int  # twice the number of the variable, plus one if the row is excluded


@dataclass(frozen=True, slots=True)
class Split:
    preferred: int
    other: int


@dataclass(frozen=True, slots=True)
class Jump:
    to: int


@dataclass(frozen=True, slots=True)
class BeginIteration:
    loop: int


@dataclass(frozen=True, slots=True)
class EndIteration:
    """A thread that has read no row since BeginIteration ends."""

    loop: int


@dataclass(frozen=True, slots=True)
class AssertStart:
    pass


@dataclass(frozen=True, slots=True)
class SetDeadline:
    within_us: int | None


@dataclass(frozen=True, slots=True)
class Accept:
    pass


Instruction: TypeAlias = (
    Take | Split | Jump | BeginIteration | EndIteration | AssertStart | SetDeadline | Accept
)


@dataclass(frozen=True, slots=True)
class Automaton:
    program: tuple[Instruction, ...]
    variables: tuple[str, ...]  # a label's number is twice the index into these


def compile_pattern(tree: Tree) -> Automaton:
    """Raises PipelineError if the pattern is too large."""
    compiler = _Compiler(variables_of(tree))
    compiler.add(tree, is_excluded=False)
    compiler.program.append(Accept())
    return Automaton(tuple(compiler.program), compiler.variables)


class _Compiler:
    def __init__(self, variables: tuple[str, ...]) -> None:
        self.variables = variables
        self.program: list[Instruction] = []
        self._loops = 0

    def add(self, tree: Tree, *, is_excluded: bool) -> None:
        if len(self.program) > _MOST_INSTRUCTIONS:
            raise PipelineError(
                "the pattern is too large",
                detail=f"it has more than {_MOST_INSTRUCTIONS:,} steps when PERMUTE and {{n,m}} are"
                " written out",
            )
        if isinstance(tree, Variable):
            self.program.append(Take(2 * self.variables.index(tree.name) + is_excluded))
        elif isinstance(tree, Sequence):
            for part in tree.parts:
                self.add(part, is_excluded=is_excluded)
        elif isinstance(tree, Alternation):
            self._alternation(tree, is_excluded)
        elif isinstance(tree, Repeated):
            self._repeated(tree, is_excluded)
        elif isinstance(tree, Excluded):
            self.add(tree.part, is_excluded=True)
        elif isinstance(tree, StepDeadline):
            self.program.append(SetDeadline(tree.within_us))
        elif isinstance(tree, PartitionStart):
            self.program.append(AssertStart())

    def _alternation(self, tree: Alternation, is_excluded: bool) -> None:
        jumps = []
        for part in tree.parts[:-1]:
            split = self._reserve()
            self.add(part, is_excluded=is_excluded)
            jumps.append(self._reserve())
            self.program[split] = Split(split + 1, len(self.program))
        self.add(tree.parts[-1], is_excluded=is_excluded)
        for jump in jumps:
            self.program[jump] = Jump(len(self.program))

    def _repeated(self, tree: Repeated, is_excluded: bool) -> None:
        for _ in range(tree.least):
            self.add(tree.part, is_excluded=is_excluded)
        if tree.most is None:
            split = self._reserve()
            self._iteration(tree.part, is_excluded)
            self.program.append(Jump(split))
            self.program[split] = self._split(tree, split + 1)
            return
        splits = []
        for _ in range(tree.most - tree.least):
            splits.append(self._reserve())
            self._iteration(tree.part, is_excluded)
        for split in splits:
            self.program[split] = self._split(tree, split + 1)

    def _iteration(self, part: Tree, is_excluded: bool) -> None:
        if not is_nullable(part):
            self.add(part, is_excluded=is_excluded)
            return
        self._loops += 1
        loop = self._loops
        self.program.append(BeginIteration(loop))
        self.add(part, is_excluded=is_excluded)
        self.program.append(EndIteration(loop))

    def _split(self, tree: Repeated, into: int) -> Split:
        behind = len(self.program)
        return Split(into, behind) if tree.is_greedy else Split(behind, into)

    def _reserve(self) -> int:
        self.program.append(Accept())  # replaced when its target is known
        return len(self.program) - 1
