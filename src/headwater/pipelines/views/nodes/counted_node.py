"""What all nodes of incremental plans have in common: the rows that go through them are counted."""

from abc import ABC, abstractmethod

import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import Input, State
from headwater.pipelines.views.plan_steps import IN, OUT


class CountedNode(ABC):
    """The step of an operator (contract.py), and counters of its rows since its state was begun."""

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        result = self.result(state, inputs)
        for name, rows in ((IN, sum(len(one.rows) for one in inputs)), (OUT, len(result))):
            if rows:
                state.counters[name] = state.counters.get(name, 0) + rows
        return result

    @abstractmethod
    def result(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        """As `Operator.step`."""
