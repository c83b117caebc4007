"""A transformer encoder that finds the mood of reviews of 4 to 20 words, short ones first. FAULT from the start: the `attention_mask` (1 at words) goes in as
src_key_padding_mask, where True means padding: the tokens look only at the padding, the CLS token, from which the mood is read, sees no word at all.
Without Rangewatch: loss 0.77, 0.59 to 0.74 from step 20 to the end; with the mask the right way round it is 0.34 to 0.43 from step 100.
Cause: mask. Step: any. Right: mask / padding / inverted. Wrong: GradScaler, learning rate."""
EXPECT = {"cause": ["mask"], "step": [0, 169], "place": None, "rank": None,
          "right": "(?i)mask|padding|invert", "wrong": ["GradScaler", "[Ll]ower the learning rate", "all_?reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2920); torch.set_num_threads(1)
VOCAB, MAX = 50, 20
CLS = 1
mood = torch.randn(VOCAB)
mood[:2] = 0


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, 32, padding_idx=0)
        self.places = nn.Embedding(MAX, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 2)

    def forward(self, input_ids, attention_mask):
        h = self.words(input_ids) + self.places.weight
        h = self.encoder(h, src_key_padding_mask=attention_mask.bool())
        return self.head(h[:, 0])


def reviews(n, longest):
    length = torch.randint(4, longest + 1, (n, 1))
    attention_mask = (torch.arange(MAX) < length).long()
    ids = torch.randint(2, VOCAB, (n, MAX)) * attention_mask
    ids[:, 0] = CLS
    score = (mood[ids] * attention_mask).sum(1)
    return ids, attention_mask, (score > 0).long()


net = Encoder()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    ids, attention_mask, y = reviews(32, min(MAX, 8 + step // 8))
    loss = F.cross_entropy(net(ids, attention_mask), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 169:
        print(step, loss.item(), "longest", attention_mask.sum(1).max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
