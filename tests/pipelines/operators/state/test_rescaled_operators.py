"""Random tests of all operators once more, with another number of buckets in every batch."""

import pytest
from pipelines.operators.joins.test_as_of_join import (  # noqa: F401
    test_as_of_event_time_a_replay_gives_the_same,
    test_whatever_is_read_first_events_find_what_was_then,
)
from pipelines.operators.joins.test_joined_tables import (  # noqa: F401
    test_every_batch_leaves_the_join_of_both_tables,
)
from pipelines.operators.joins.test_stream_join import (  # noqa: F401
    test_any_cut_gives_what_nested_loops_give,
)
from pipelines.operators.patterns.test_match_corrections import (  # noqa: F401
    test_any_cut_leaves_the_matches_of_all_rows_in_their_order,
)
from pipelines.operators.patterns.test_match_operator import (  # noqa: F401
    test_any_cut_gives_the_matches_by_definition,
)
from pipelines.operators.patterns.test_stored_patterns import (  # noqa: F401
    test_any_cut_gives_what_each_version_finds_in_its_rows,
)
from pipelines.operators.processing import test_keyed_process
from pipelines.operators.selection import test_deduplication
from pipelines.operators.selection.test_top_rows import (  # noqa: F401
    test_the_store_has_the_first_rows_after_each_batch,
)
from pipelines.operators.windows import test_fixed_windows
from pipelines.operators.windows.test_session_windows import (  # noqa: F401
    test_however_the_log_is_cut_the_sessions_are_those_of_the_rows_in_time,
)
from pipelines.operators.windows.test_sliding_windows import (  # noqa: F401
    test_however_the_log_is_cut_each_event_has_its_interval,
)
from pipelines.operators.windows.test_table_windows import (  # noqa: F401
    test_results_are_of_the_table_after_each_batch,
)
from pipelines.operators.windows.test_zoned_windows import (  # noqa: F401
    test_days_are_those_of_the_clock_there,
)
from pipelines.search.test_search_operator import (  # noqa: F401
    test_any_cut_finds_what_every_query_finds_in_every_document,
    test_limits_do_not_depend_on_the_cut,
)
from support.pipelines.operator_driver import Driver

test_fixed = test_fixed_windows.test_any_cut_gives_what_the_log_says
test_deduplicated = test_deduplication.test_any_cut_gives_what_the_log_says
test_processed = test_keyed_process.test_any_cut_gives_what_the_log_says


@pytest.fixture(autouse=True, scope="module")
def _other_buckets_in_every_batch():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Driver, "buckets_of_batches", (1, 3, 2, 5, 4))
        yield
