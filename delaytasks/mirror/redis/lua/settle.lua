-- Move or remove entries whose time is still the one that the caller saw. Their priorities stay.
--
-- A changed time means that the job was moved meanwhile. The entry then stays: at worst it is early,
-- which costs one refused claim. Exception: a delayed entry is still moved to an earlier time. A run that
-- could not claim the job may have put the entry at the end of a lease whose holder now releases the job.
--
-- KEYS[1]  zset    due: member -> score, see score.lua
-- ARGV[1]  string  prefix of the ready zsets' keys; the topic follows (same hash tag)
-- ARGV[2]  string  channel to notify when the earliest due time becomes earlier
-- ARGV[3...]       quadruples: member, topic, seen ms, new ms or -1 to remove; at most 1,000
-- RETURN   int     how many were changed
local due, ready_prefix, channel = KEYS[1], ARGV[1], ARGV[2]

local function head()
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  return #first > 0 and decode(first[2]) or nil
end

local before = head()
local changed = 0
for i = 3, math.min(#ARGV, 4002), 4 do
  local member, ready = ARGV[i], ready_prefix .. ARGV[i + 1]
  local seen, new = tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local zset, score = due, redis.call('ZSCORE', due, member)
  if not score then
    zset, score = ready, redis.call('ZSCORE', ready, member)
  end
  if score then
    local at, priority = decode(score)
    if at == seen then
      if new < 0 or zset ~= due then
        redis.call('ZREM', zset, member)
      end
      if new >= 0 then
        redis.call('ZADD', due, delayed_score(new, priority), member)
      end
      changed = changed + 1
    elseif zset == due and new >= 0 and new < at then
      redis.call('ZADD', due, delayed_score(new, priority), member)
      changed = changed + 1
    end
  end
end
local after = head()
if after and (not before or after < before) then
  redis.call('PUBLISH', channel, string.format('%.0f', after))
end
return changed
