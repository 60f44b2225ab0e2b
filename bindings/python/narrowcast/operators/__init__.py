"""What each ATen operator does with a QuantizedTensor: exact on the bytes, a plain tensor, or
refused with a reason. Importing this fills the table of narrowcast.dispatch.
"""

from narrowcast.operators import arithmetic, copies, joins, lists, queries, table, views, writes

__all__ = ["arithmetic", "copies", "joins", "lists", "queries", "table", "views", "writes"]
