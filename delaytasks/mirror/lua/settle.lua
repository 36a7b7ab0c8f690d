-- Move entries later, or remove them, where their score is still the one that the caller saw.
--
-- A score that changed means that somebody moved the job meanwhile; then the entry stays as it
-- is: at worst too early, which costs one refused claim. Only earlier it is moved even then: who
-- reserved a job in vain put it at the end of a lease that its holder now gives up.
--
-- KEYS[1]  zset    due: member -> ms
-- ARGV[1]  string  what the key of a ready zset begins with; the topic follows (same hash tag)
-- ARGV[2]  string  channel that is told when the head of due becomes earlier
-- ARGV[3...]       quadruples: member, topic, seen in ms, new in ms or -1 to remove; at most 1,000
-- RETURN   int     how many were changed
local due, ready_prefix, channel = KEYS[1], ARGV[1], ARGV[2]

local function head()
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  return tonumber(first[2])
end

local before = head()
local changed = 0
for i = 3, math.min(#ARGV, 4002), 4 do
  local member, ready = ARGV[i], ready_prefix .. ARGV[i + 1]
  local seen, new = tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local place = due
  local score = tonumber(redis.call('ZSCORE', due, member) or nil)
  if not score then
    place = ready
    score = tonumber(redis.call('ZSCORE', ready, member) or nil)
  end
  if score and score == seen then
    if new < 0 or place ~= due then
      redis.call('ZREM', place, member)
    end
    if new >= 0 then
      redis.call('ZADD', due, new, member)
    end
    changed = changed + 1
  elseif score and place == due and new >= 0 and new < score then
    redis.call('ZADD', due, 'LT', new, member)
    changed = changed + 1
  end
end
local after = head()
if after and (not before or after < before) then
  redis.call('PUBLISH', channel, string.format('%d', after))
end
return changed
