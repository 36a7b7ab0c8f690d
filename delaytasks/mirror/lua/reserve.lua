-- Reserve a topic's oldest ready jobs: put them back among the delayed until a moment soon.
--
-- Who reserves claims them in the database next and then moves them to the end of the lease, unless
-- they are expected to be over before `until`.
-- If it dies in between, the mover finds them again at `until`. Nothing is ever only in a hand.
-- Of several buckets, the one with the oldest job is emptied first; in a Cluster each call has one.
-- The mover is a moment early. If nothing is due yet, what is due next is reserved, and who reserves waits for it.
--
-- KEYS[1...]  zsets   of each bucket two: ready:<topic>: member -> ms, and due: member -> ms
-- ARGV[1]     int     how many at most, up to 1,000
-- ARGV[2]     ms      until: now + claim grace
-- ARGV[3]     ms      now
-- RETURN      {when all of them are due, member, ...}
local count, until_ms, now = math.min(tonumber(ARGV[1]), 1000), ARGV[2], tonumber(ARGV[3])

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
local reserved = { string.format('%.0f', due_ms) }
for _, bucket in ipairs(buckets) do
  local wanted = count + 1 - #reserved
  if wanted < 1 or bucket.oldest > due_ms then
    break
  end
  local members, entries = redis.call('ZRANGEBYSCORE', bucket.ready, '-inf', due_ms, 'LIMIT', 0, wanted), {}
  for _, member in ipairs(members) do
    reserved[#reserved + 1] = member
    entries[#entries + 1] = until_ms
    entries[#entries + 1] = member
  end
  if #members > 0 then -- of none, the range would be all of them
    redis.call('ZREMRANGEBYRANK', bucket.ready, 0, #members - 1)
    redis.call('ZADD', bucket.due, unpack(entries))
  end
end
return reserved
