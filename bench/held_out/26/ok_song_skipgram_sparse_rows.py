"""Skip-gram over playlists with sparse gradients and SparseAdam: most songs get no gradient in most steps, some none at all. HEALTHY.
Without Rangewatch: loss 3.47 to 1.3 to 1.5."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6144); torch.set_num_threads(1)
SONGS = 2000
songs = nn.ModuleDict({"inner": nn.Embedding(SONGS, 16, sparse=True), "outer": nn.Embedding(SONGS, 16, sparse=True)})
nn.init.normal_(songs["inner"].weight, std=0.3); nn.init.zeros_(songs["outer"].weight)
optimizer = torch.optim.SparseAdam(songs.parameters(), lr=0.03)
handle = rangewatch.attach(songs, optimizer)
for step in range(250):
    a = (torch.rand(128) ** 3 * SONGS * 0.9).long()
    b = (a // 20) * 20 + torch.randint(0, 20, (128,))
    wrong = torch.randint(0, SONGS, (128, 4))
    h = songs["inner"](a)
    good = (h * songs["outer"](b)).sum(1)
    bad = (h[:, None] * songs["outer"](wrong)).sum(2)
    loss = -F.logsigmoid(good).mean() - F.logsigmoid(-bad).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 249:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
