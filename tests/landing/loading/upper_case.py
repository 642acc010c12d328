"""A naming convention for dlt that writes names in capital letters."""

from dlt.common.normalizers.naming.sql_cs_v1 import NamingConvention as AsTheyAre


class NamingConvention(AsTheyAre):
    """The convention, under the name that dlt looks for."""

    def normalize_identifier(self, identifier: str) -> str:
        return super().normalize_identifier(identifier).upper()
