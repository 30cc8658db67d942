"""Tables like those of TPC-H, of a few hundred rows, and changes of them.

The columns are those of the benchmark. Values are of small sets that have what its queries ask for,
so that a small number of rows gives results: with the benchmark's own distributions most of the 22
queries would find nothing.
"""

from datetime import date, timedelta
from decimal import Decimal
from random import Random

from support.pipelines.view_driver import Table

TABLES = {
    "region": Table("r_regionkey bigint, r_name string", ("r_regionkey",)),
    "nation": Table("n_nationkey bigint, n_name string, n_regionkey bigint", ("n_nationkey",)),
    "supplier": Table(
        "s_suppkey bigint, s_name string, s_address string, s_nationkey bigint, s_phone string, "
        "s_acctbal decimal(15,2), s_comment string",
        ("s_suppkey",),
    ),
    "customer": Table(
        "c_custkey bigint, c_name string, c_address string, c_nationkey bigint, c_phone string, "
        "c_acctbal decimal(15,2), c_mktsegment string, c_comment string",
        ("c_custkey",),
    ),
    "part": Table(
        "p_partkey bigint, p_name string, p_mfgr string, p_brand string, p_type string, "
        "p_size int, p_container string, p_retailprice decimal(15,2)",
        ("p_partkey",),
    ),
    "partsupp": Table(
        "ps_partkey bigint, ps_suppkey bigint, ps_availqty int, ps_supplycost decimal(15,2)",
        ("ps_partkey", "ps_suppkey"),
    ),
    "orders": Table(
        "o_orderkey bigint, o_custkey bigint, o_orderstatus string, o_totalprice decimal(15,2), "
        "o_orderdate date, o_orderpriority string, o_shippriority int, o_comment string",
        ("o_orderkey",),
    ),
    "lineitem": Table(
        "l_orderkey bigint, l_linenumber int, l_partkey bigint, l_suppkey bigint, "
        "l_quantity decimal(15,2), l_extendedprice decimal(15,2), l_discount decimal(15,2), "
        "l_tax decimal(15,2), l_returnflag string, l_linestatus string, l_shipdate date, "
        "l_commitdate date, l_receiptdate date, l_shipinstruct string, l_shipmode string",
        ("l_orderkey", "l_linenumber"),
    ),
}
_REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE")
_NATIONS = {"KENYA": 0, "BRAZIL": 1, "CANADA": 1, "JAPAN": 2, "FRANCE": 3, "GERMANY": 3,
            "SAUDI ARABIA": 0}  # fmt: skip
_NAMES = ("forest green", "green apple", "forest moss", "red clay")
_TYPES = ("ECONOMY ANODIZED STEEL", "PROMO POLISHED BRASS", "STANDARD BRASS", "MEDIUM POLISHED TIN")
_PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "5-LOW")
_SEGMENTS = ("BUILDING", "AUTOMOBILE", "MACHINERY")
_MODES = ("MAIL", "SHIP", "AIR", "AIR REG", "RAIL")
_SUPPLIERS, _CUSTOMERS, _PARTS, _ORDERS = 8, 25, 14, 110
_FIRST_DAY = date(1993, 6, 1)
_DAYS = 1400


class Shop:
    """The tables of now (`rows`), and what changes them."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self.rows: dict[str, dict[tuple, dict]] = {name: {} for name in TABLES}
        self._changes: dict[str, list[dict]] = {}
        self._next_order = 0

    def first_changes(self) -> dict[str, list[dict]]:
        """Everything, as it is at first."""
        self._changes = {name: [] for name in TABLES}
        for number, name in enumerate(_REGIONS):
            self._put("region", r_regionkey=number, r_name=name)
        for number, (name, region) in enumerate(_NATIONS.items()):
            self._put("nation", n_nationkey=number, n_name=name, n_regionkey=region)
        for number in range(_SUPPLIERS):
            self._put_supplier(number)
        for number in range(_CUSTOMERS):
            self._put_customer(number)
        for number in range(_PARTS):
            self._put_part(number)
            for supplier in self._chance.sample(range(_SUPPLIERS), 3):
                self._put_partsupp(number, supplier)
        for _ in range(_ORDERS):
            self._put_order()
        return self._changes

    def refresh(self) -> dict[str, list[dict]]:
        """New orders, the removal of old ones, and updates of every table."""
        chance = self._chance
        self._changes = {name: [] for name in TABLES}
        for _ in range(8):
            self._put_order()
        for key in chance.sample(sorted(self.rows["orders"]), 8):
            for line in [one for one in self.rows["lineitem"] if one[0] == key[0]]:
                self._remove("lineitem", line)
            self._remove("orders", key)
        for key in chance.sample(sorted(self.rows["lineitem"]), 12):
            self._put_line(*key)
        for key in chance.sample(sorted(self.rows["orders"]), 4):
            self._put("orders", **{**self.rows["orders"][key], "o_orderstatus": chance.choice("FO"),
                                   "o_custkey": chance.randrange(_CUSTOMERS)})  # fmt: skip
        self._put_supplier(chance.randrange(_SUPPLIERS))
        self._put_part(chance.randrange(_PARTS))
        for key in chance.sample(sorted(self.rows["partsupp"]), 3):
            self._put_partsupp(*key)
        for _ in range(2):
            self._put_customer(chance.randrange(_CUSTOMERS))
        if chance.random() < 0.5:  # without their supplier, lines are in no join with it
            self._remove("supplier", chance.choice(sorted(self.rows["supplier"])))
        else:
            self._put_supplier(chance.randrange(_SUPPLIERS))
        nation = chance.choice(sorted(self.rows["nation"]))
        self._put("nation", **{**self.rows["nation"][nation], "n_regionkey": chance.randrange(4)})
        return self._changes

    def _put(self, table: str, **row: object) -> None:
        self.rows[table][tuple(row[name] for name in TABLES[table].key)] = row
        self._changes[table].append(row)

    def _remove(self, table: str, key: tuple) -> None:
        del self.rows[table][key]
        self._changes[table].append(dict(zip(TABLES[table].key, key, strict=True), _op="d"))

    def _money(self, low: int, high: int) -> Decimal:
        return Decimal(self._chance.randint(low * 100, high * 100)).scaleb(-2)

    def _put_supplier(self, number: int) -> None:
        nation = self._chance.randrange(len(_NATIONS))
        self._put(
            "supplier",
            s_suppkey=number,
            s_name=f"Supplier#{number:05}",
            s_address=f"street {self._chance.randrange(50)}",
            s_nationkey=nation,
            s_phone=f"{nation + 10}-{self._chance.randrange(1000):03}",
            s_acctbal=self._money(-500, 9000),
            s_comment=self._chance.choice(("quick", "slow Customer, some Complaints", "even")),
        )

    def _put_customer(self, number: int) -> None:
        self._put(
            "customer",
            c_custkey=number,
            c_name=f"Customer#{number:05}",
            c_address=f"road {self._chance.randrange(50)}",
            c_nationkey=self._chance.randrange(len(_NATIONS)),
            c_phone=f"{self._chance.choice((13, 31, 23, 29, 40))}-{number:03}",
            c_acctbal=self._money(-900, 9000),
            c_mktsegment=self._chance.choice(_SEGMENTS),
            c_comment=self._chance.choice(("calm", "final", "bold")),
        )

    def _put_part(self, number: int) -> None:
        chance = self._chance
        self._put(
            "part",
            p_partkey=number,
            p_name=chance.choice(_NAMES),
            p_mfgr=f"Manufacturer#{chance.randint(1, 2)}",
            p_brand=chance.choice(("Brand#12", "Brand#23", "Brand#34", "Brand#45")),
            p_type=chance.choice(_TYPES),
            p_size=chance.choice((1, 3, 9, 15, 23)),
            p_container=chance.choice(("SM CASE", "MED BOX", "MED BAG", "LG CASE")),
            p_retailprice=self._money(900, 1200),
        )

    def _put_partsupp(self, part: int, supplier: int) -> None:
        self._put(
            "partsupp",
            ps_partkey=part,
            ps_suppkey=supplier,
            ps_availqty=self._chance.randint(1, 60),
            ps_supplycost=self._money(1, 900),
        )

    def _put_order(self) -> None:
        chance, number = self._chance, self._next_order
        self._next_order += 1
        self._put(
            "orders",
            o_orderkey=number,
            o_custkey=chance.randrange(_CUSTOMERS - 5),  # some customers never order
            o_orderstatus=chance.choice("FO"),
            o_totalprice=self._money(100, 3000),
            o_orderdate=_FIRST_DAY + timedelta(days=chance.randrange(_DAYS)),
            o_orderpriority=chance.choice(_PRIORITIES),
            o_shippriority=0,
            o_comment=chance.choice(("plain", "a special one of requests", "nothing")),
        )
        for line in range(chance.randint(1, 4)):
            self._put_line(number, line)

    def _put_line(self, order: int, line: int) -> None:
        chance = self._chance
        ordered = self.rows["orders"][order,]["o_orderdate"]
        part, supplier = chance.choice(sorted(self.rows["partsupp"]))
        days = [timedelta(days=chance.randint(1, 90)) for _ in range(2)]
        self._put(
            "lineitem",
            l_orderkey=order,
            l_linenumber=line,
            l_partkey=part,
            l_suppkey=supplier,
            l_quantity=Decimal(chance.randint(1, 50)),
            l_extendedprice=self._money(100, 2000),
            l_discount=Decimal(chance.randint(0, 10)).scaleb(-2),
            l_tax=Decimal(chance.randint(0, 8)).scaleb(-2),
            l_returnflag=chance.choice("ANR"),
            l_linestatus=chance.choice("FO"),
            l_shipdate=ordered + days[0],
            l_commitdate=ordered + days[1],
            l_receiptdate=ordered + days[0] + timedelta(days=chance.randint(1, 30)),
            l_shipinstruct=chance.choice(("DELIVER IN PERSON", "NONE")),
            l_shipmode=chance.choice(_MODES),
        )
