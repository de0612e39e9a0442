"""The keys under `iceberg` of a sink, and what Spark is told of the catalog that they name.

catalog_uri    sqlite:///relative.db, sqlite:////absolute.db      a table of tables in an SQLite file
               postgresql://host:5432/database                    the same in PostgreSQL
               http://host:8181, https://host                     a REST catalog, with catalog: rest
catalog        hadoop                                             no catalog but the folders of the warehouse
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from tailrace.config.model import Model, NotYet, Secret
from tailrace.targets._maintenance import Maintenance
from tailrace.targets.iceberg.catalog import IMPLEMENTATION

_POSTGRES = ("postgresql", "postgres")


class Options(Model):
    """The keys under `iceberg` of a sink."""

    catalog: Literal["jdbc", "hadoop", "rest"] = "jdbc"
    """Where the tables are registered: `jdbc` in a database, `rest` in a server, `hadoop` by their folders in the
    warehouse alone. With `hadoop` there must never be two writers: a file system does not tell them apart."""
    catalog_name: str = Field("default", pattern=r"^[A-Za-z][A-Za-z0-9_]*$")
    """The name that the catalog's database has the tables under, for other readers to give."""
    catalog_uri: str = ""
    """The database of a `jdbc` catalog: `sqlite:///file` or `postgresql://host:port/database`; the server of a `rest`
    one: `https://host`."""
    catalog_username: str = ""
    """The user of the catalog's database; of a `rest` catalog, the id of the client."""
    catalog_password: Secret = Secret("")
    """That user's password; of a `rest` catalog, the client's secret, or without an id a token."""
    warehouse: str = Field(min_length=1)
    """The folder that holds the tables, as a path, or `s3://<bucket>/<prefix>`; of a `rest` catalog, what the server
    calls it."""
    table_namespace: str = Field("default", pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")
    """The namespace of the tables; it is made if it is not there."""
    table_name: str | None = Field(None, min_length=1, max_length=200)
    """The name of the table, where the pipeline has exactly one."""
    write_mode: Literal["append", "upsert"] | None = None
    """Another way to say the sink's `mode`: `append`, or `upsert` for `scd1`."""
    format_version: int = Field(3, ge=2, le=3)
    """The version of the format of tables that are made: 3 has deletion vectors, 2 is for readers that lack them."""
    partition_by: tuple[str, ...] = ()
    """What tables are partitioned by: columns, or `year`, `month`, `day`, `hour`, `bucket(16, column)`,
    `truncate(4, column)` of one."""
    auto_create_table: bool = True
    """Whether a table that is not there is made."""
    tombstone_days: int = Field(default=7, ge=1)
    """How many days a deleted row is remembered, so that no late event brings it back."""
    batch_size: Annotated[
        int | None, NotYet("has no effect", "slice.max_rows of the platform bounds a batch.", refuse=False)
    ] = None
    """How many rows to write at a time."""
    s3_endpoint: str | None = None
    """The address of the object store, if it is not AWS."""
    s3_access_key_id: Secret | None = None
    """The access key; if unset, whatever AWS clients find in the environment."""
    s3_secret_access_key: Secret | None = None
    """The secret of the access key."""
    s3_region: str = "us-east-1"
    """The region of the bucket."""
    maintenance: Maintenance = Maintenance()
    """Compaction and expiry, between slices."""

    @model_validator(mode="after")
    def _one_catalog(self) -> Options:
        if self.catalog == "hadoop" and self.catalog_uri:
            raise ValueError("catalog_uri has no meaning with catalog: hadoop")
        uri = urlsplit(self.catalog_uri)
        if self.catalog == "rest" and (uri.scheme not in ("http", "https") or not uri.netloc):
            raise ValueError("give catalog_uri as https://host with catalog: rest")
        if self.catalog == "jdbc" and uri.scheme.partition("+")[0] not in ("sqlite", *_POSTGRES):
            raise ValueError("give catalog_uri as sqlite:///file or postgresql://host/database, or catalog: hadoop")
        if uri.password or uri.username:
            raise ValueError("give user and password as catalog_username and catalog_password")
        return self

    @model_validator(mode="after")
    def _one_storage(self) -> Self:
        if (self.s3_access_key_id is None) is not (self.s3_secret_access_key is None):
            raise ValueError("s3_access_key_id and s3_secret_access_key belong together")
        given = self.s3_endpoint or self.s3_access_key_id
        if given and not self.on_s3:
            raise ValueError("the s3_ keys have no meaning unless the warehouse is s3://<bucket>/<prefix>")
        stored = urlsplit(self.warehouse).scheme.lower()
        if self.catalog == "hadoop" and stored in ("s3", "s3a", "s3n", "gs", "oss"):
            raise ValueError(
                "a warehouse on S3 or its like needs catalog: jdbc or rest; by folders alone writers are not told apart"
            )
        return self

    @property
    def on_s3(self) -> bool:
        """Whether the files of the tables are in an object store that we are told how to reach."""
        asked = self.catalog == "rest" and (self.s3_endpoint or self.s3_access_key_id)
        return bool(asked) or self.warehouse.startswith("s3://")

    @property
    def implied_mode(self) -> str | None:
        """The sink's mode, if `write_mode` says it."""
        return {"append": "append", "upsert": "scd1"}.get(self.write_mode or "")

    def settings(self) -> dict[str, str]:
        """Return what Spark is told of the catalog, by what follows its name."""
        named = "://" in self.warehouse or self.catalog == "rest"
        where = self.warehouse if named else str(Path(self.warehouse).absolute())
        # Without a cache a table is always as it is now, also in a session that did not write it.
        settings = {"": IMPLEMENTATION, "type": self.catalog, "warehouse": where, "cache-enabled": "false"}
        password = self.catalog_password.get_secret_value()
        if self.catalog == "rest":
            settings["uri"] = self.catalog_uri
            if password:
                # An id and a secret get a token from the server; without an id, what is given is one.
                login = {"credential": f"{self.catalog_username}:{password}"} if self.catalog_username else {}
                settings |= login or {"token": password}
        if self.catalog == "jdbc":
            # Every table has a session, every session a catalog, and every catalog would keep two connections.
            settings |= {"uri": self._jdbc(), "jdbc.schema-version": "V1", "clients": "1"}
            if self.catalog_username:
                settings["jdbc.user"] = self.catalog_username
            if password:
                settings["jdbc.password"] = password
        return settings | (self._s3() if self.on_s3 else {})

    def _s3(self) -> dict[str, str]:
        settings = {"io-impl": _S3_FILES, "client.region": self.s3_region}
        if self.s3_endpoint:
            # Names of buckets as names of hosts are an affair of AWS.
            settings |= {"s3.endpoint": self.s3_endpoint, "s3.path-style-access": "true"}
        if self.s3_access_key_id and self.s3_secret_access_key:
            settings["s3.access-key-id"] = self.s3_access_key_id.get_secret_value()
            settings["s3.secret-access-key"] = self.s3_secret_access_key.get_secret_value()
        return settings

    def make_room(self) -> None:
        """Make the folder of an SQLite catalog, which SQLite does not."""
        if self.catalog == "jdbc" and self._jdbc().startswith(_SQLITE):
            Path(self._jdbc().removeprefix(_SQLITE)).parent.mkdir(parents=True, exist_ok=True)

    def _jdbc(self) -> str:
        uri = urlsplit(self.catalog_uri)
        if uri.scheme.partition("+")[0] in _POSTGRES:
            return f"jdbc:postgresql://{uri.netloc}{uri.path}{uri.query and '?'}{uri.query}"
        return f"{_SQLITE}{Path(uri.path[1:]).absolute()}"


_SQLITE = "jdbc:sqlite:"
_S3_FILES = "org.apache.iceberg.aws.s3.S3FileIO"
