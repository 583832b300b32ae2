{{- define "everstep.redisConf" -}}
# The journal's server: what is acknowledged is on the disk, and nothing is ever dropped to make room.
port 6379
bind * -::*
# Who may do what is in the ACL file; user probe needs no password and may only PING.
protected-mode no
aclfile /etc/redis-acl/users.acl
dir /data
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
# Half a record at the end of the file is what a power loss leaves of a write that was never acknowledged.
aof-load-truncated yes
aof-use-rdb-preamble yes
save ""
maxmemory {{ .Values.redis.maxMemory }}
maxmemory-policy noeviction
maxmemory-clients 10%
tcp-keepalive 60
timeout 0
loglevel notice
daemonize no
{{- end }}
