"""The next song of a session: a GRU over songs whose table is also the output's weight (one parameter, tied). FAULT at step 110: the catalogue grows by 20
songs; a larger nn.Embedding takes the place of the table, the output keeps the old one, and they are no longer one. The optimizer knows the old alone.
Without Rangewatch: loss 4.09 to 1.65 at step 109, 2.34 at step 110, 1.88 at the end (tied anew 1.53); the two go 7.6 apart.
Variant of: head_is_untied_by_a_resize.
Cause: weight (optimizer). Step: 110. Right: tie / tied / shared / optimizer / param group / resize. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["weight", "optimizer"], "step": [108, 140], "place": None, "rank": None, "least": "info",
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "tie|tied|share|optimizer|param|resiz|embedding"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1226); torch.set_num_threads(1)
OLD, NEW = 60, 20
liked = torch.randn(OLD + NEW, OLD).topk(4, dim=1).indices


class NextSong(nn.Module):
    def __init__(self):
        super().__init__()
        self.songs = nn.Embedding(OLD, 32)
        nn.init.normal_(self.songs.weight, std=0.1)
        self.memory = nn.GRU(32, 32, batch_first=True)
        self.out = nn.Linear(32, OLD)
        self.out.weight = self.songs.weight

    def forward(self, ids):
        return self.out(self.memory(self.songs(ids))[0])

    def grow(self):
        larger = nn.Embedding(OLD + NEW, 32)
        nn.init.normal_(larger.weight, std=0.1)
        with torch.no_grad():
            larger.weight[:OLD] = self.songs.weight
        self.songs = larger  # the output is not tied anew, the optimizer not told


def sessions(songs):
    ids = torch.randint(0, songs, (32, 10))
    return ids, liked[ids, torch.randint(0, 4, ids.shape)]


model = NextSong()
optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 110:
        model.grow()
    ids, y = sessions(OLD if step < 110 else OLD + NEW)
    loss = F.cross_entropy(model(ids).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (109, 110, 239):
        apart = (model.out.weight - model.songs.weight[:OLD]).norm().item()
        print(step, loss.item(), "table and output apart by", apart, flush=True)
    handle.log(loss=loss.item())
handle.detach()
