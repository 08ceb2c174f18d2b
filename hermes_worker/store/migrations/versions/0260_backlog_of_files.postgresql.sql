create view hermes_backlog as
with clock(now) as (select cast(extract(epoch from clock_timestamp()) as double precision)),
queues(queue, step_s_min) as (values
    ('model', 10.0),
    ('tools', 5.0),
    ('delivery', 2.0),
    ('suspect_model', 10.0),
    ('suspect_tools', 5.0),
    ('suspect_delivery', 2.0)
),
due(queue, steps, since) as (
    select case when deaths is null then 'model' else 'suspect_model' end, count(*), min(hinted_at)
    from runs
    where hinted_at is not null and hinted_at <= (select now from clock)
    group by 1
    union all
    select 'model', count(*), min(created_at)
    from runs
    where place = 0
    union all
    select case when asks = 1 then case when deaths is null then 'model' else 'suspect_model' end
                else case when deaths is null then 'tools' else 'suspect_tools' end end, count(*), min(hinted_at)
    from tool_calls
    where hinted_at is not null and hinted_at <= (select now from clock)
    group by 1
    union all
    select 'tools', count(*), min(hinted_at)
    from firings
    where hinted_at is not null and hinted_at <= (select now from clock)
    union all
    select 'tools', count(*), min(hinted_at)
    from hook_calls
    where hinted_at is not null and hinted_at <= (select now from clock)
    union all
    select 'tools', count(*), min(hinted_at)
    from artifact_gatherings
    where hinted_at is not null and hinted_at <= (select now from clock)
    union all
    select case when deaths is null then 'delivery' else 'suspect_delivery' end, count(*), min(hinted_at)
    from deliveries
    where hinted_at is not null and hinted_at <= (select now from clock)
    group by 1
    union all
    select 'delivery', count(*), min(hinted_at)
    from inbound_files
    where hinted_at is not null and hinted_at <= (select now from clock)
),
claimed(queue, claimed_at) as (
    select case when deaths is null then 'model' else 'suspect_model' end, claimed_at
    from runs
    where lease_owner is not null
    union all
    select case when asks = 1 then case when deaths is null then 'model' else 'suspect_model' end
                else case when deaths is null then 'tools' else 'suspect_tools' end end, claimed_at
    from tool_calls
    where lease_owner is not null
    union all
    select 'tools', claimed_at
    from firings
    where lease_owner is not null
    union all
    select 'tools', claimed_at
    from hook_calls
    where lease_owner is not null
    union all
    select 'tools', claimed_at
    from artifact_gatherings
    where lease_owner is not null
    union all
    select case when deaths is null then 'delivery' else 'suspect_delivery' end, claimed_at
    from deliveries
    where lease_owner is not null
    union all
    select 'delivery', claimed_at
    from inbound_files
    where lease_owner is not null
),
ranked(queue, claimed_at, place, steps) as (
    select queue, claimed_at,
           row_number() over (partition by queue order by claimed_at), count(*) over (partition by queue)
    from claimed
),
at_work(queue, steps, median_age_s) as (
    select queue, max(steps), greatest(0.0, (select now from clock) - avg(claimed_at))
    from ranked
    where place in ((steps + 1) / 2, (steps + 2) / 2)
    group by queue
),
measured(queue, due, claimed, oldest_age_s, step_s) as (
    select queues.queue,
           coalesce(d.steps, 0),
           coalesce(c.steps, 0),
           greatest(0.0, coalesce((select now from clock) - d.since, 0.0)),
           least(60.0, greatest(queues.step_s_min,
                   (60.0 + 2.0 * coalesce(c.median_age_s * c.steps, 0.0)) / (1.0 + coalesce(c.steps, 0))))
    from queues
    left join (select queue, sum(steps) as steps, min(since) as since from due group by queue) d
        on d.queue = queues.queue
    left join at_work c on c.queue = queues.queue
)
select queue,
       cast(due as bigint) as due,
       cast(claimed as bigint) as claimed,
       oldest_age_s,
       step_s,
       cast(claimed + ceil(due * step_s / 60.0) as bigint) as capacity_needed
from measured
