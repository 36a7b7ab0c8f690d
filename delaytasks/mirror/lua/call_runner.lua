-- Find somebody for a topic's ready jobs: wake a runner that lingers, or say that a bell is due.
--
-- KEYS[1]  zset    slots: token -> ms when its lease ends
-- KEYS[2]  zset    lingering: token -> ms until when it waits, of the runners that serve this topic
-- KEYS[3]  string  bell: set while a rung bell is not answered yet
-- ARGV[1]  ms      now
-- ARGV[2]  int     how many slots the topic has
-- ARGV[3]  ms      how long a rung bell may stay unanswered before it is rung again
-- ARGV[4]  string  what the key of a lingerer's wake list begins with; its token follows (same hash tag)
-- ARGV[5]  string  topic
-- RETURN   0 woken, 1 ring a bell, 2 all slots are taken, 3 rung a moment ago
local slots, lingering, bell = KEYS[1], KEYS[2], KEYS[3]
local now, limit, patience = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local wake_prefix, topic = ARGV[4], ARGV[5]

redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
if redis.call('ZCARD', slots) >= limit then
  return 2
end
redis.call('ZREMRANGEBYSCORE', lingering, '-inf', now)
local idle = redis.call('ZPOPMAX', lingering)
if #idle > 0 then
  local wake = wake_prefix .. idle[1]
  redis.call('RPUSH', wake, topic)
  redis.call('PEXPIRE', wake, 60000)
  return 0
end
if redis.call('SET', bell, 1, 'NX', 'PX', patience) then
  return 1
end
return 3
