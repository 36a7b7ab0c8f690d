-- Reserve a topic's oldest ready jobs: make them delayed again until shortly after now.
--
-- The caller then claims them in the database, and moves the entries of slow jobs to the end of their lease.
-- The mover makes the others ready again at `until`: no job is ever held in memory alone.
-- Of several buckets, the one with the oldest job is emptied first; in a Cluster each call has one bucket.
-- The mover promotes a moment early. If nothing is due yet, the jobs due next are reserved, and the caller waits.
--
-- KEYS[1...]  zsets   two per bucket: ready:<topic>: member -> ms, and due: member -> ms
-- ARGV[1]     int     maximum number of jobs, up to 1,000
-- ARGV[2]     ms      until: the end of the reservation
-- ARGV[3]     ms      now
-- ARGV[4]     string  channel to notify when the earliest due time becomes earlier
-- RETURN      {when all of them are due, 1 if more are ready else 0, member, ...}, the members by due time and id
local count, until_ms, now, channel = math.min(tonumber(ARGV[1]), 1000), ARGV[2], tonumber(ARGV[3]), ARGV[4]

local buckets = {}
for i = 1, #KEYS, 2 do
  local ready, due = KEYS[i], KEYS[i + 1]
  local head = redis.call('ZRANGE', ready, 0, 0, 'WITHSCORES')
  if #head > 0 then
    buckets[#buckets + 1] = { ready = ready, due = due, oldest = tonumber(head[2]) }
  end
end
table.sort(buckets, function(one, other) return one.oldest < other.oldest end)

local due_ms = math.max(now, #buckets > 0 and buckets[1].oldest or 0)
local reserved, more = {}, 0
for _, bucket in ipairs(buckets) do
  local wanted = count - #reserved
  if wanted < 1 or bucket.oldest > due_ms then
    break
  end
  local ready, entries = redis.call('ZRANGEBYSCORE', bucket.ready, '-inf', due_ms, 'WITHSCORES', 'LIMIT', 0, wanted), {}
  for i = 1, #ready, 2 do
    local member = ready[i]
    reserved[#reserved + 1] = { tonumber(ready[i + 1]), tonumber(string.match(member, '^%d+')), member }
    entries[#entries + 1] = until_ms
    entries[#entries + 1] = member
  end
  if #ready > 0 then -- else the range 0 to -1 would remove all
    redis.call('ZREMRANGEBYRANK', bucket.ready, 0, #ready / 2 - 1)
    local first = redis.call('ZRANGE', bucket.due, 0, 0, 'WITHSCORES')
    redis.call('ZADD', bucket.due, unpack(entries))
    -- A single job is claimed at once. Others may wait, and must be ready again in time if they wait too long.
    if count > 1 and (#first == 0 or tonumber(until_ms) < tonumber(first[2])) then
      redis.call('PUBLISH', channel, until_ms)
    end
  end
end
table.sort(reserved, function(one, other)
  return one[1] < other[1] or (one[1] == other[1] and one[2] < other[2])
end)
for _, bucket in ipairs(buckets) do
  if redis.call('EXISTS', bucket.ready) == 1 then
    more = 1
  end
end
local answer = { string.format('%.0f', due_ms), more }
for _, job in ipairs(reserved) do
  answer[#answer + 1] = job[3]
end
return answer
