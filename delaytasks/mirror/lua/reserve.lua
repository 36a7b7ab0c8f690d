-- Reserve a topic's oldest ready jobs: put them back among the delayed until a moment soon.
--
-- Who reserves claims them in the database next and then moves them to the end of the lease, unless
-- they are expected to be over before `until`.
-- If it dies in between, the mover finds them again at `until`. Nothing is ever only in a hand.
--
-- KEYS[1]  zset    ready:<topic>: member -> ms
-- KEYS[2]  zset    due: member -> ms
-- ARGV[1]  int     how many at most, up to 1,000
-- ARGV[2]  ms      until: now + claim grace
-- RETURN   {member, ...}
local ready, due = KEYS[1], KEYS[2]
local count, until_ms = math.min(tonumber(ARGV[1]), 1000), ARGV[2]

if count < 1 then
  return {}
end
local members = redis.call('ZRANGE', ready, 0, count - 1)
if #members == 0 then
  return members
end
local entries = {}
for _, member in ipairs(members) do
  entries[#entries + 1] = until_ms
  entries[#entries + 1] = member
end
redis.call('ZREMRANGEBYRANK', ready, 0, #members - 1)
redis.call('ZADD', due, unpack(entries))
return members
