-- Schema version 1. Runs once, in one transaction, under the migration's advisory lock. Everything is
-- unqualified: the search path of the session says which schema it is for.

create table if not exists objects (
    object_type text not null,
    id text not null,
    name text,
    payload bytea not null,
    labels text,
    created_at_ms bigint not null,
    updated_at_ms bigint not null,
    primary key (object_type, id)
);

-- A table made before resource_version existed keeps its rows, its payloads and its other columns.
do $adopt$
declare
    here oid := format('%I.objects', current_schema())::regclass;
    found record;
begin
    -- Columns that we do not know must not stand in the way of rows that we write.
    for found in
        select attname from pg_attribute
        where attrelid = here and attnum > 0 and not attisdropped and attnotnull and not atthasdef
          and attidentity = '' and attname not in ('object_type', 'id', 'payload')
          and not exists (
              select from pg_constraint
              where conrelid = here and contype = 'p' and attnum = any (conkey))
    loop
        execute format('alter table objects alter column %I drop not null', found.attname);
    end loop;
    alter table objects add column if not exists name text;
    alter table objects add column if not exists labels text;
    alter table objects add column if not exists created_at_ms bigint;
    alter table objects add column if not exists updated_at_ms bigint;
    alter table objects alter column labels drop default;
    if exists (
        select from pg_attribute
        where attrelid = here and attname = 'labels' and atttypid <> 'text'::regtype)
    then
        alter table objects alter column labels type text using labels::text;
    end if;
    begin
        perform labels::jsonb from objects where btrim(labels) <> '';
    exception when others then
        raise exception 'a row of table objects has labels that are not JSON (%); repair it and start again', sqlerrm;
    end;
    update objects set labels = null where btrim(labels) in ('', 'null', '{}');
    for found in
        select object_type, id from objects where jsonb_typeof(labels::jsonb) <> 'object' limit 1
    loop
        raise exception 'labels of %/% are not a JSON object; repair that row and start again', found.object_type, found.id;
    end loop;
    -- Labels are strings; a number becomes its digits, so that it is found by them.
    update objects set labels =
        (select jsonb_object_agg(key, coalesce(value, 'null'))::text
         from jsonb_each_text(labels::jsonb))
        where jsonb_path_exists(labels::jsonb, '$.* ? (@.type() <> "string")', silent => true);
    update objects set created_at_ms = coalesce(created_at_ms, 0),
                       updated_at_ms = coalesce(updated_at_ms, created_at_ms, 0)
        where created_at_ms is null or updated_at_ms is null;

    -- Ids sort bytewise, whatever the database's language.
    alter table objects
        alter column object_type type text collate "C",
        alter column id type text collate "C",
        alter column name type text collate "C",
        alter column created_at_ms set not null,
        alter column updated_at_ms set not null;
    for found in
        select conname from pg_constraint
        where conrelid = here and contype = 'p' and conkey <> (
            select array_agg(attnum order by attname desc) from pg_attribute
            where attrelid = here and attname in ('object_type', 'id'))
    loop
        execute format('alter table objects drop constraint %I', found.conname);
    end loop;
    if not exists (select from pg_constraint where conrelid = here and contype = 'p') then
        alter table objects add primary key (object_type, id);
    end if;
    if not exists (
        select from pg_index
        where indrelid = here and indisunique and indnkeyatts = 2 and indexprs is null
          and pg_get_expr(indpred, indrelid) = '(name IS NOT NULL)'
          and (select array_agg(attname::text order by attname) from pg_attribute
               where attrelid = here and attnum = any (indkey::smallint[]))
              = array['name', 'object_type'])
    then
        create unique index objects_name on objects (object_type, name) where name is not null;
    end if;
end
$adopt$;

alter table objects
    add column if not exists resource_version bigint not null default 1,
    add column revision bigint,
    add column created_revision bigint,
    add column token bigint,
    add column ttl_ms bigint,
    -- On the store's clock. Not indexed, so that a touch changes no index.
    add column expires_at_ms bigint;

with ordered as (
    select object_type, id, row_number() over (order by created_at_ms, object_type, id) as number
    from objects
)
update objects
set revision = number, created_revision = number, token = number
from ordered
where objects.object_type = ordered.object_type and objects.id = ordered.id;

alter table objects
    alter column revision set not null,
    alter column created_revision set not null,
    alter column token set not null,
    -- Room on every page for the next version of a row, so that touches and updates stay there.
    set (fillfactor = 80);

-- What the sweep looks through.
create index objects_mortal on objects (object_type, id) where ttl_ms is not null;

-- What watchers are told: one row for each group of commits, one array element for each change, in
-- order. Storing the arrays as they arrive costs a fraction of a row for each change. `causes` holds
-- put, deleted or expired. People read the view tenure_history instead.
create table tenure_events (
    last_revision bigint primary key,
    at_ms bigint not null,
    bytes bigint not null,
    revisions bigint[] not null,
    causes text[] not null,
    object_types text[] not null,
    ids text[] not null,
    names text[] not null,
    payloads bytea[] not null,
    labels text[] not null,
    created_at_ms bigint[] not null,
    updated_at_ms bigint[] not null,
    resource_versions bigint[] not null,
    object_revisions bigint[] not null,
    created_revisions bigint[] not null,
    tokens bigint[] not null,
    ttl_ms bigint[] not null
);
-- Written once, read hardly ever: compressing any of it would cost more than it saves, and so would
-- moving more of it out of the row than has to be.
alter table tenure_events
    alter column revisions set storage external,
    alter column causes set storage external,
    alter column object_types set storage external,
    alter column ids set storage external,
    alter column names set storage external,
    alter column payloads set storage external,
    alter column labels set storage external,
    alter column created_at_ms set storage external,
    alter column updated_at_ms set storage external,
    alter column resource_versions set storage external,
    alter column object_revisions set storage external,
    alter column created_revisions set storage external,
    alter column tokens set storage external,
    alter column ttl_ms set storage external,
    set (toast_tuple_target = 8160);

create view tenure_history as
select e.revision, e.cause, e.object_type, e.id, e.name, e.resource_version, e.payload, e.labels,
       to_timestamp(t.at_ms / 1000.0) as at
from tenure_events t, unnest(
    revisions, causes, object_types, ids, names, resource_versions, payloads, labels
) as e (revision, cause, object_type, id, name, resource_version, payload, labels);

-- One row. Every commit locks it first, so commits are strictly serial.
create table tenure_meta (
    only_row boolean primary key default true check (only_row),
    schema_version integer not null,
    -- Programs below this writer level are refused.
    min_writer integer not null,
    -- The last revision drawn.
    revision bigint not null,
    -- History up to here is gone.
    compacted_revision bigint not null,
    -- The store's time is the server's clock plus this; it absorbs steps of the server's clock.
    clock_offset_ms bigint not null,
    -- The store's time never goes below the latest that was recorded.
    clock_last_ms bigint not null,
    -- No object expires before this instant.
    next_expiry_ms bigint not null
) with (fillfactor = 10);

insert into tenure_meta
select true, 1, 1, count(*), count(*), 0, 0, 9223372036854775807 from objects;

-- A program that knows nothing of revisions would lose somebody's update. It does not announce
-- itself, so the database turns it away. Once per statement: rows cost nothing.
create function tenure_refuse_writer() returns trigger language plpgsql as $refuse$
declare
    writer integer := coalesce(nullif(current_setting('tenure.writer', true), ''), '0')::integer;
    required integer;
begin
    execute format('select min_writer from %I.tenure_meta', tg_table_schema) into required;
    if writer < required then
        raise exception 'this program is too old to write to this Tenure store: it accepts writers of level % and above, this one has level %', required, writer
            using errcode = 'insufficient_privilege',
                  hint = 'Upgrade the program. Nothing was written.';
    end if;
    return null;
end
$refuse$;

create trigger tenure_refuse_writer
    before insert or update or delete or truncate on objects
    for each statement
    when (current_setting('tenure.writer', true) is distinct from '1')
    execute function tenure_refuse_writer();
