-- Wake a waiting runner for a topic's ready jobs, or tell the caller to send a run_topic message.
--
-- KEYS[1]  zset    slots: token -> ms when its lease ends
-- KEYS[2]  zset    waiting runners that serve this topic: token -> ms when the wait ends
-- KEYS[3]  string  pending: exists from sending a message until a runner comes. "<ms when it was sent>:<ms until it
--                  may be sent again>"; workers of an older version store "1"
-- ARGV[1]  ms      now
-- ARGV[2]  int     number of the topic's slots
-- ARGV[3]  ms      the longest wait for a runner before another message may be sent
-- ARGV[4]  string  prefix of the wake lists' keys; the runner's token follows (same hash tag)
-- ARGV[5]  string  topic
-- ARGV[6]  ms      the first wait for a runner before another message may be sent; doubled each time
-- RETURN   0 woken, 1 send a message, 2 all slots are taken, 3 a message was sent a moment ago
local slots, waiting, pending = KEYS[1], KEYS[2], KEYS[3]
local now, limit, longest = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local wake_prefix, topic, wait = ARGV[4], ARGV[5], tonumber(ARGV[6])

redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
if redis.call('ZCARD', slots) >= limit then
  return 2
end
redis.call('ZREMRANGEBYSCORE', waiting, '-inf', now)
local runner = redis.call('ZPOPMAX', waiting)
if #runner > 0 then
  local wake = wake_prefix .. runner[1]
  redis.call('RPUSH', wake, topic)
  redis.call('PEXPIRE', wake, 60000)
  return 0
end
local sent = redis.call('GET', pending)
if sent then
  local at, waited = string.match(sent, '^(%d+):(%d+)$')
  if not at or tonumber(now) < tonumber(at) + tonumber(waited) then
    return 3
  end
  wait = tonumber(waited) * 2
end
redis.call('SET', pending, string.format('%s:%.0f', now, math.min(wait, longest)), 'PX', 2 * longest)
return 1
