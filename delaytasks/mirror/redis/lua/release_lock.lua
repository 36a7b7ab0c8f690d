-- Release a lock that the caller still holds.
--
-- KEYS[1]  string  lock: the holder's token
-- ARGV[1]  string  the caller's token
-- RETURN   1 released, 0 the caller does not hold it
local lock, token = KEYS[1], ARGV[1]

if redis.call('GET', lock) ~= token then
  return 0
end
return redis.call('DEL', lock)
