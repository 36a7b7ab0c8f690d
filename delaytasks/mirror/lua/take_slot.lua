-- Take or renew one of a topic's run slots. A slot is a lease: a killed worker's ends by itself.
--
-- KEYS[1]  zset    slots: token -> ms when its lease ends
-- KEYS[2]  string  bell: set while a rung bell is not answered yet; who comes for a new slot answers it
-- ARGV[1]  ms      now
-- ARGV[2]  ms      when the lease is to end
-- ARGV[3]  int     how many slots the topic has
-- ARGV[4]  string  token
-- RETURN   1 taken or renewed, 0 all slots are taken
local slots, bell = KEYS[1], KEYS[2]
local now, lease_until, limit, token = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
if not redis.call('ZSCORE', slots, token) then
  redis.call('DEL', bell)
  if redis.call('ZCARD', slots) >= limit then
    return 0
  end
end
redis.call('ZADD', slots, lease_until, token)
return 1
